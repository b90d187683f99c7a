// Zeroed memory whose pages the operating system allocates when they are first touched.
#pragma once

#include <cstddef>
#include <string>

namespace tl {

class AnonymousMemory {
 public:
  enum class Pages { kDefault, kHuge };

  // Page-aligned memory. kHuge asks for huge pages, which need fewer address translations, for memory that is used as a
  // whole. Throws LimitError if the system cannot reserve that much; the message says what it is for (`what`) and what
  // to do (`remedy`).
  AnonymousMemory(std::size_t size, Pages pages, const std::string& what, const std::string& remedy);
  ~AnonymousMemory();
  AnonymousMemory(const AnonymousMemory&) = delete;
  AnonymousMemory& operator=(const AnonymousMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tl
