// Greedy sampling: token[r] = argmax(logits[r]), the lowest id among equals. A NaN never wins; a row of nothing else
// gives id 0.
//
// Bytes: 4 * vocab a row. FLOPs: a compare each. Floor: bytes / bandwidth, latency below 10 MB (about 4 us).
// Several blocks share a row; the last to arrive picks the best of their winners. `winners` holds rows * blocks u64,
// `arrivals` a zero per row, which the kernel leaves zero. Launch: grid (blocks, rows), 256 threads. Macros: TL_VOCAB.
#include "cuda/async.cuh"

namespace tl {

// Orders by value, then by lower id: floats as unsigned integers that compare alike, above the complement of the id.
__device__ __forceinline__ u64 sort_key(float value, int id) {
  if (value != value) return 0;
  value += 0.0f;  // -0 equals 0
  const u32 bits = __float_as_uint(value), ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<u64>(ordered) << 32 | ~static_cast<u32>(id);
}

__device__ __forceinline__ u64 block_max(u64 key) {
  __shared__ u64 partial[8];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const u64 other = __shfl_xor_sync(0xffffffffu, key, offset);
    key = other > key ? other : key;
  }
  __syncthreads();  // the last use of `partial` is over
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = key;
  __syncthreads();
  key = partial[0];
#pragma unroll
  for (int w = 1; w < 8; ++w) key = partial[w] > key ? partial[w] : key;
  return key;
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(256)
    greedy_sample(int* tokens, const float* logits, tl::u64* winners, tl::u32* arrivals) {
  using namespace tl;
  __shared__ bool last;
  wait_for_previous_kernel();
  allow_next_kernel();
  const int row = blockIdx.y, blocks = gridDim.x;
  const float* from = logits + static_cast<u64>(row) * TL_VOCAB;
  u64 key = 0;
#pragma unroll 4
  for (int id = blockIdx.x * 256 + threadIdx.x; id < TL_VOCAB; id += blocks * 256) {
    const u64 other = sort_key(from[id], id);
    key = other > key ? other : key;
  }
  key = block_max(key);
  if (threadIdx.x == 0) {
    winners[row * blocks + blockIdx.x] = key;
    __threadfence();
    last = atomicAdd(arrivals + row, 1) == blocks - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  key = 0;
  for (int i = threadIdx.x; i < blocks; i += 256) {
    const u64 other = __ldcg(winners + row * blocks + i);
    key = other > key ? other : key;
  }
  key = block_max(key);
  if (threadIdx.x == 0) {
    tokens[row] = key == 0 ? 0 : static_cast<int>(~static_cast<u32>(key));
    arrivals[row] = 0;
  }
}
