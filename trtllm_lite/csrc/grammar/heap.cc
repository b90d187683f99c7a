#include "grammar/heap.h"

#include <malloc.h>

namespace tl {

AllocatedBytes AllocatedBytes::now() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // deprecated by glibc 2.33, because its fields wrap around
  const struct mallinfo info = mallinfo();
#pragma GCC diagnostic pop
  // Sum of allocations in heaps and in separate mappings.
  return AllocatedBytes(static_cast<std::uint32_t>(info.uordblks) + static_cast<std::uint32_t>(info.hblkhd));
}

void return_free_memory() { malloc_trim(0); }

}  // namespace tl
