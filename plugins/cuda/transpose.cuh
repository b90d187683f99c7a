// Exchanges registers among neighbouring lanes.
#pragma once

#include "cuda/types.cuh"

namespace tl {

// Transposes within each group of kCount lanes, two or four: lane q's new pieces[i] is lane i's pieces[q].
template <int kCount>
__device__ __forceinline__ void transpose(u32 (&pieces)[kCount], int lane) {
#pragma unroll
  for (int bit = 1; bit < kCount; bit *= 2) {
    const bool high = lane & bit;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i & bit) continue;
      const u32 got = __shfl_xor_sync(0xffffffffu, high ? pieces[i] : pieces[i + bit], bit);
      (high ? pieces[i] : pieces[i + bit]) = got;
    }
  }
}

}  // namespace tl
