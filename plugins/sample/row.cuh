// A row of logits as weights of a draw, and sums over it by the blocks that share it: a cluster.
//
// Weights are integers, so that a sum does not depend on its order: the same row gives the same token whatever the
// launch, and a border that a sum reaches exactly is reached exactly.
#pragma once

#include "cuda/async.cuh"
#include "cuda/cluster.cuh"
#include "cuda/warp_reduce.cuh"

namespace tl {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kBlocks = TL_HAS_CLUSTERS ? TL_CLUSTER : 1;  // blocks that share a row
constexpr float kUnit = 0x1p36f;                           // the weight of the most likely token
constexpr float kNegligible = 26.0f;                       // exp(-26) rounds to no unit

// Floats as unsigned integers that compare alike (-0 as 0), and back.
__device__ __forceinline__ u32 sort_bits(float value) {
  const u32 bits = __float_as_uint(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_sort_bits(u32 bits) {
  return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// Calls f(i, from[i]) for i = begin, begin + step, ... below end; kBatch loads are in flight at a time, whatever f
// does.
template <int kBatch, class T, class Visit>
__device__ __forceinline__ void visit(const T* from, int begin, int end, int step, const Visit& f) {
#pragma unroll 1
  for (int i = begin; i < end; i += kBatch * step) {
    T values[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (i + j * step < end) values[j] = __ldcg(from + i + j * step);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (i + j * step < end) f(i + j * step, values[j]);
    }
  }
}

// Calls f(id, logit) for every id of thread number `thread` among the `threads` that share the row.
template <class Visit>
__device__ __forceinline__ void visit_row(const float* logits, int thread, int threads, const Visit& f) {
  if constexpr (TL_VOCAB % 4 == 0) {  // rows begin at multiples of 16 bytes
    const auto each = [&](int i, const float4& four) {
      f(4 * i, four.x);
      f(4 * i + 1, four.y);
      f(4 * i + 2, four.z);
      f(4 * i + 3, four.w);
    };
    visit<4>(reinterpret_cast<const float4*>(logits), thread, TL_VOCAB / 4, threads, each);
  } else {
    visit<8>(logits, thread, TL_VOCAB, threads, f);
  }
}

// Whether a mask, of one bit a token, allows a token; null allows all.
__device__ __forceinline__ bool is_allowed(const u32* mask, int id) {
  return mask == nullptr || (__ldcg(mask + id / 32) >> (id % 32) & 1) != 0;
}

// The border of the tokens that are left: those above `key`, and those at it up to `last_id`.
struct Border {
  u32 key;  // sort_bits of a scaled logit
  int last_id = 0x7fffffff;
};

struct Row {
  const float* logits;
  const u32* mask;  // a bit for each token, 1 if it may be drawn; null: all may be
  float temperature, max_scaled, min_p;

  __device__ __forceinline__ bool allows(int id) const { return is_allowed(mask, id); }

  // The division comes first, as on the host, so that ties after rounding are the same ties.
  __device__ __forceinline__ float scaled(float logit) const { return logit / temperature; }
  __device__ __forceinline__ float likelihood(float scaled) const { return expf(scaled - max_scaled); }
  __device__ __forceinline__ u64 weight(float likelihood) const { return __float2ull_rn(likelihood * kUnit); }
  // No logit below this reaches the border: it saves nearly all tokens the division and the exponential.
  __device__ __forceinline__ float surely_below(const Border& border) const {
    const float logit = from_sort_bits(border.key) * temperature;
    return logit - fabsf(logit) * 1e-6f - 1e-30f;
  }
  __device__ __forceinline__ u64 weight_within(const Border& border, int id, float logit) const {
    const float value = scaled(logit), share = likelihood(value);
    const u32 key = sort_bits(value);
    const bool inside = key > border.key || (key == border.key && id <= border.last_id);
    return inside && share >= min_p ? weight(share) : 0;
  }
};

// Cuts `length` ids from `begin` on into `runs` of equal length, and finds the run in which the sum exceeds `left`,
// from which the sums of earlier runs are subtracted. `sum_of(run)` is the sum over a run.
template <class SumOf>
__device__ __forceinline__ void descend(int& begin, int& length, u64& left, int runs, const SumOf& sum_of) {
  const int run_length = ceil_div(length, runs);
  int chosen = 0;
  while (chosen < runs - 1 && left >= sum_of(chosen)) left -= sum_of(chosen++);
  length = min_of(run_length, length - chosen * run_length);
  begin += chosen * run_length;
}

// This warp's sum of measure(id, logit) over its run of `length` ids from `begin` on, cut into `runs`.
template <class Measure>
__device__ __forceinline__ u64 sum_run(const float* logits, int begin, int length, int runs, int run,
                                       const Measure& measure) {
  const int run_length = ceil_div(length, runs), from = begin + run * run_length;
  u64 sum = 0;
  visit<8>(logits, from + static_cast<int>(threadIdx.x % 32), min_of(from + run_length, begin + length), 32,
           [&](int id, float logit) { sum += measure(id, logit); });
  return warp_sum(sum);
}

// Puts each warp's sum into `sums`, in the order of the cluster's warps; returns the sum over all warps, in every
// thread.
__device__ __forceinline__ u64 gather_sums(u64 sum, u64 (&sums)[kBlocks * kWarps]) {
  __shared__ u64 mine[kWarps];
  if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = sum;
  cluster_sync();
  if (threadIdx.x < kBlocks * kWarps) {
    sums[threadIdx.x] = load_of_block(mine + threadIdx.x % kWarps, threadIdx.x / kWarps);
  }
  cluster_sync();
  u64 total = 0;
#pragma unroll 16
  for (int i = 0; i < kBlocks * kWarps; ++i) total += sums[i];
  return total;
}

// The sum of measure(id, logit) over the row, in all threads.
template <class Measure>
__device__ __forceinline__ u64 row_sum(const float* logits, const Measure& measure) {
  __shared__ u64 sums[kBlocks * kWarps];
  const int run = cluster_rank() * kWarps + threadIdx.x / 32;
  return gather_sums(sum_run(logits, 0, TL_VOCAB, kBlocks * kWarps, run, measure), sums);
}

// The lowest id at which the sum of measure(id, logit) over all ids up to it exceeds target(sum over the row), which
// must be less than that sum. The warps of the cluster share the row; then those of each block share the run of a warp
// that holds the id, and so on. All threads get the same id.
template <class Measure, class Target>
__device__ __forceinline__ int find_by_sum(const float* logits, const Measure& measure, const Target& target) {
  __shared__ u64 sums[kBlocks * kWarps];
  const int warp = threadIdx.x / 32;
  int begin = 0, length = TL_VOCAB, runs = kBlocks * kWarps, run = cluster_rank() * kWarps + warp;
  u64 left = 0;
#pragma unroll 1
  while (length > 1) {
    const u64 sum = sum_run(logits, begin, length, runs, run, measure);
    if (length == TL_VOCAB) {
      left = target(gather_sums(sum, sums));
    } else {
      __syncthreads();  // the last use of `sums` is over
      if (threadIdx.x % 32 == 0) sums[warp] = sum;
      __syncthreads();
    }
    descend(begin, length, left, runs, [&](int i) { return sums[i]; });
    runs = kWarps, run = warp;
  }
  return begin;
}

}  // namespace tl
