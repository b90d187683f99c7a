// Which sequence a packed token belongs to.
#pragma once

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

}  // namespace tl
