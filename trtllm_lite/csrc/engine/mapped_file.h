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
  // Throws EngineError with path and remedy if `path` is not a readable regular file. The mapping stays valid if the
  // file is renamed or unlinked. Truncating a mapped file in place kills the process (SIGBUS), so engines are only
  // replaced as a whole (a new file, renamed).
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Throws EngineError if the file has been written since it was mapped: its bytes are then not those that were
  // checked. Costs a system call; a write right after it goes unnoticed.
  void check_unchanged() const;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  struct Stamp {
    std::int64_t size = 0, seconds = 0, nanoseconds = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  Stamp stamp() const;

  std::string path_;
  int fd_ = -1;  // kept open, because another file may have taken the name
  Stamp checked_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tl
