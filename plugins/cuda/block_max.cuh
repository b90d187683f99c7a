// The maximum over a block of TL_THREADS threads (a multiple of 32) of one nonnegative value per thread.
#pragma once

#include "cuda/async.cuh"
#include "cuda/warp_reduce.cuh"

namespace tl {

__device__ __forceinline__ float block_max(float value) {
  __shared__ float partial[TL_THREADS / 32];
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float largest = 0.0f;
#pragma unroll
  for (int w = 0; w < TL_THREADS / 32; ++w) largest = fmaxf(largest, partial[w]);
  return largest;
}

}  // namespace tl
