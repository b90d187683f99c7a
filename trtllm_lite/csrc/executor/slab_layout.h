// The memory of a KV cache that can have another use for a while.
#pragma once

#include <cstdint>

namespace tl {

// Blocks of `block_bytes` lie one behind the other, from the beginning of the first slab on. A slab is the unit in
// which memory moves.
struct SlabLayout {
  std::int64_t block_bytes = 0, slab_bytes = 0;
  int max_lent = 0;  // the most slabs that have another use at once; 0: none
};

}  // namespace tl
