// The best logit of a row, found by the blocks that share it: logits as keys that order by value, then lowest id.
#pragma once

#include "sample/row.cuh"

namespace tl {

constexpr u64 kUnusable = ~0ull;  // above every key of a usable logit

__device__ __forceinline__ u64 key_of(int id, float logit) {
  return static_cast<u64>(sort_bits(logit)) << 32 | ~static_cast<u32>(id);
}
__device__ __forceinline__ float logit_of(u64 key) { return from_sort_bits(static_cast<u32>(key >> 32)); }
__device__ __forceinline__ int id_of(u64 key) { return static_cast<int>(~static_cast<u32>(key)); }

// The best of the ids that a thread visits, in order: the largest logit, the lowest id among equals.
struct Best {
  float logit = __int_as_float(0xff800000);
  int id = 0;
  bool usable = true;

  __device__ __forceinline__ void add(int other_id, float other) {
    usable = usable && other < __int_as_float(0x7f800000);  // NaN and plus infinity are not
    if (other > logit) {
      logit = other;
      id = other_id;
    }
  }
  // Orders like add(); a row that is not usable beats everything.
  __device__ __forceinline__ u64 key() const { return usable ? key_of(id, logit) : kUnusable; }
};

// The best key among the ids of the `thread`-th of `threads` that share the row.
__device__ __forceinline__ u64 best_key(const float* logits, int thread, int threads) {
  Best best;
  visit_row(logits, thread, threads, [&](int id, float logit) { best.add(id, logit); });
  return best.key();
}

// Like best_key(), for the tokens that `mask` allows.
__device__ __forceinline__ u64 best_allowed_key(const float* logits, const u32* mask, int thread, int threads) {
  Best best;
  visit_row(logits, thread, threads, [&](int id, float logit) {
    if (!(logit <= best.logit) && is_allowed(mask, id)) best.add(id, logit);  // few are better: masks are hardly read
  });
  return best.key();
}

__device__ __forceinline__ u64 larger(u64 a, u64 b) { return a > b ? a : b; }

// Returns the largest key, in every thread.
__device__ __forceinline__ u64 block_max(u64 key) {
  __shared__ u64 partial[kWarps];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) key = larger(key, __shfl_xor_sync(0xffffffffu, key, offset));
  __syncthreads();  // the last use of `partial` is over
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = key;
  __syncthreads();
  key = partial[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) key = larger(key, partial[w]);
  return key;
}

// The best key of a row in every thread of its cluster.
__device__ __forceinline__ u64 row_max(u64 key) {
  key = block_max(key);
#if TL_HAS_CLUSTERS
  __shared__ u64 mine;
  if (threadIdx.x == 0) mine = key;
  cluster_sync();
#pragma unroll
  for (int rank = 0; rank < kBlocks; ++rank) key = larger(key, load_of_block(&mine, rank));
  cluster_sync();
#endif
  return key;
}

// The best key of row r without clusters: in every thread of the last of its blocks to arrive; 0 in the others.
__device__ __forceinline__ u64 last_max(u64 key, int r, u64* winners, u32* arrivals) {
  __shared__ bool last;
  const int blocks = gridDim.x;
  key = block_max(key);
  if (threadIdx.x == 0) {
    winners[r * blocks + blockIdx.x] = key;
    __threadfence();
    last = atomicAdd(arrivals + r, 1) == blocks - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return 0;
  key = 0;
  for (int i = threadIdx.x; i < blocks; i += kThreads) key = larger(key, __ldcg(winners + r * blocks + i));
  if (threadIdx.x == 0) arrivals[r] = 0;
  return block_max(key);
}

}  // namespace tl
