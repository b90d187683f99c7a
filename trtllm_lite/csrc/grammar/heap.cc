#include "grammar/heap.h"

#include <malloc.h>

namespace tl {

std::size_t allocated_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;  // in heaps, and in mappings of their own
}

void return_free_memory() { malloc_trim(0); }

}  // namespace tl
