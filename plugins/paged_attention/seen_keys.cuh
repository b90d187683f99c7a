// Which keys a query sees: those up to its own position, of the window if there is one, and none before position
// TL_FIRST_POSITION, unless that lies behind its own (0 for all but heads that draft).
#pragma once

#include "cuda/types.cuh"

namespace tl {

constexpr int kFirstPosition = TL_FIRST_POSITION;

// The last key that a query does not see although it comes before it; a negative number if there is none. Keys are
// counted from position `origin` on, and so is `query`, its position.
__device__ __forceinline__ int last_unseen(int query, int window, int origin) {
  const int last = window > 0 ? query - window : -1;
  return kFirstPosition > 0 ? max_of(last, min_of(kFirstPosition - origin, query) - 1) : last;
}

}  // namespace tl
