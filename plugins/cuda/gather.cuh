// One row of 16-bit elements copied by a block, 16 bytes a thread and step.
#pragma once

#include "cuda/async.cuh"

namespace tl {

template <int kWidth>
__device__ __forceinline__ void copy_row(u16* y, const u16* x) {
  static_assert(kWidth % 8 == 0, "rows must be multiples of 16 bytes");
  const uint4* from = reinterpret_cast<const uint4*>(x);
  uint4* to = reinterpret_cast<uint4*>(y);
  for (int i = threadIdx.x; i < kWidth / 8; i += blockDim.x) to[i] = from[i];
}

}  // namespace tl
