// A file mapped into memory, read-only.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tl {

class MappedFile {
 public:
  // Throws EngineError with path and remedy if `path` is not a regular file that can be read. The mapping stays valid
  // when the file is renamed or unlinked; truncating it in place while it is mapped kills the process (SIGBUS), which
  // is why engines are only ever replaced as a whole (a new file, renamed).
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Throws EngineError if the file has been written to since it was mapped: its bytes are no longer those that were
  // checked. Costs a system call; what is written a moment later nobody can tell.
  void check_unchanged() const;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  struct Stamp {
    std::int64_t size = 0, seconds = 0, nanoseconds = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  Stamp stamp() const;

  std::string path_;
  int fd_ = -1;  // kept open: another file may have taken the name
  Stamp checked_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tl
