// Which keys a query sees: those up to its own position, of its window or chunk if there is one, and none before
// position TL_FIRST_POSITION, unless that lies behind its own (0 for all but heads that draft).
//
// A window moves with the query. Where TL_CHUNKED is 1, sequences are cut into chunks of as many positions instead.
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

// Where the window or chunk of the query at `position` begins, of `window` positions; 0: there is none. In the cache
// blocks before that may lie anything, NaN too. It begins nowhere before that of an earlier query.
__device__ __forceinline__ int window_start(int position, int window) {
  if (window == 0) return 0;
  return TL_CHUNKED ? position / window * window : max_of(position - window + 1, 0);
}
// The first key that the query at `position` sees.
__device__ __forceinline__ int first_seen(int position, int window) {
  return max_of(window_start(position, window), min_of(kFirstPosition, position));
}

}  // namespace tl
