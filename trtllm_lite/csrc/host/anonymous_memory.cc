#include "host/anonymous_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "errors.h"

namespace tl {

AnonymousMemory::AnonymousMemory(std::size_t size, Pages pages, const std::string& what, const std::string& remedy)
    : size_(size) {
  if (size_ == 0) return;
  data_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    throw LimitError(what + ": expected to reserve " + std::to_string(size_) +
                     " bytes, found that the system has not " + "that much address space or memory (" +
                     std::strerror(errno) + "); " + remedy);
  }
#ifdef MADV_HUGEPAGE
  // This is only a hint: if huge pages are off, the memory has ordinary ones.
  if (pages == Pages::kHuge) ::madvise(data_, size_, MADV_HUGEPAGE);
#endif
}

AnonymousMemory::~AnonymousMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace tl
