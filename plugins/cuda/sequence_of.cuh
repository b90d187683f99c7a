// Which sequence a packed token belongs to.
#pragma once

#include "cuda/types.cuh"

namespace tl {

// The last sequence that starts at or before the token.
__device__ __forceinline__ int sequence_of(int token, const int* cu_seqlens, int num_seqs) {
  int low = 0, high = num_seqs - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (cu_seqlens[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// The same for a token that all lanes of a warp have: each looks at another sequence, so that 1,024 sequences take two
// loads, one after the other, instead of ten.
__device__ __forceinline__ int sequence_of_warp(int token, const int* cu_seqlens, int num_seqs) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int low = 0, count = num_seqs;  // it is one of so many from `low` on
  while (count > 1) {
    const int step = ceil_div(count, 32), at = lane * step;
    const bool starts = at < count && cu_seqlens[low + at] <= token;
    const int before = (__popc(__ballot_sync(0xffffffffu, starts)) - 1) * step;
    low += before;
    count = min_of(step, count - before);
  }
  return low;
}

}  // namespace tl
