// y[i] = x[indices[i]] for rows of 16-bit elements: one block a row, 16 bytes a thread and step.
#pragma once

#include "cuda/async.cuh"

namespace tl {

template <int kWidth>
__device__ __forceinline__ void gather_row(u16* y, const u16* x, const int* indices) {
  static_assert(kWidth % 8 == 0, "rows must be multiples of 16 bytes");
  wait_for_previous_kernel();
  allow_next_kernel();
  const uint4* from = reinterpret_cast<const uint4*>(x + static_cast<u64>(indices[blockIdx.x]) * kWidth);
  uint4* to = reinterpret_cast<uint4*>(y + static_cast<u64>(blockIdx.x) * kWidth);
  for (int i = threadIdx.x; i < kWidth / 8; i += blockDim.x) to[i] = from[i];
}

}  // namespace tl
