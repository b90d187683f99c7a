// The sum over a block of TL_THREADS threads (a multiple of 32) of one value per thread.
#pragma once

#include "cuda/async.cuh"
#include "cuda/warp_reduce.cuh"

namespace tl {

// Each sum in a kernel needs its own number kWhich, which gives it its own shared memory.
template <int kWhich = 0>
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float partial[TL_THREADS / 32];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < TL_THREADS / 32; ++w) total += partial[w];
  return total;
}

}  // namespace tl
