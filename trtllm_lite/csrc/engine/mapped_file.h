// A file mapped into memory, read-only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tl {

class MappedFile {
 public:
  // Throws EngineError with path and remedy if `path` is not a regular file that can be read. The mapping stays valid
  // when the file is renamed or unlinked; truncating it in place while it is mapped kills the process (SIGBUS), which
  // is why engines are only ever replaced as a whole.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tl
