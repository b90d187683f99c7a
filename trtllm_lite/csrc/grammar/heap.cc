#include "grammar/heap.h"

#include <malloc.h>

namespace tl {

AllocatedBytes AllocatedBytes::now() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // by glibc 2.33, for fields that wrap around
  const struct mallinfo info = mallinfo();
#pragma GCC diagnostic pop
  // In heaps, and in mappings of their own.
  return AllocatedBytes(static_cast<std::uint32_t>(info.uordblks) + static_cast<std::uint32_t>(info.hblkhd));
}

void return_free_memory() { malloc_trim(0); }

}  // namespace tl
