// Which keys a query sees: those up to its own position, within its window or chunk if there is one, and none before
// TL_FIRST_POSITION. (A query before TL_FIRST_POSITION sees its own key alone. Only draft heads set this macro; it is 0
// by default.)
//
// A window moves with the query. If TL_CHUNKED is 1, sequences are instead cut into chunks of that many positions.
#pragma once

#include "cuda/types.cuh"

#ifndef TL_FIRST_POSITION
#define TL_FIRST_POSITION 0
#endif
#ifndef TL_CHUNKED
#define TL_CHUNKED 0
#endif

namespace tl {

constexpr int kFirstPosition = TL_FIRST_POSITION;

// The first position of the window or chunk of the query at `position`; `window` is its size, 0 for none. Cache blocks
// before it may hold anything, even NaN. The first position never decreases from one query to the next.
__device__ __forceinline__ int window_start(int position, int window) {
  if (window == 0) return 0;
  return TL_CHUNKED ? position / window * window : max_of(position - window + 1, 0);
}
// The first key that the query at `position` sees.
__device__ __forceinline__ int first_seen(int position, int window) {
  return max_of(window_start(position, window), min_of(kFirstPosition, position));
}

}  // namespace tl
