// Log-probabilities of a drawn token and of the most likely ones, from the model's own logits, as in
// csrc/sampling/logprobs.h.
#pragma once

#include "sample/best.cuh"
#include "sample/slot.cuh"

namespace tl {

// The thread's best key below `limit`; 0 if there is none.
__device__ __forceinline__ u64 best_below(const float* logits, u64 limit) {
  u64 best = 0;
  visit_row(logits, cluster_rank() * kThreads + threadIdx.x, kBlocks * kThreads, [&](int id, float logit) {
    const u64 key = key_of(id, logit);
    if (key < limit) best = larger(best, key);
  });
  return best;
}

// The keys of the row's `count` <= kMaxTopLogprobs best tokens, best first, in `sorted` of the cluster's first block;
// 0 where there is none. Each block finds its own; then the first ranks all of them.
__device__ __forceinline__ void find_top(const float* logits, int count, u64 (&sorted)[kMaxTopLogprobs]) {
  __shared__ u64 mine[kMaxTopLogprobs];
  __shared__ u64 all[kBlocks * kMaxTopLogprobs];
  u64 next = kUnusable, best = kUnusable;
  for (int i = 0; i < count; ++i) {
    if (best == next && best > 0) next = best_below(logits, best);  // the last one was this thread's
    best = block_max(next);
    if (threadIdx.x == 0) mine[i] = best;
  }
  cluster_sync();
  const int number = threadIdx.x, total = kBlocks * count;
  if (number < total) all[number] = load_of_block(mine + number % count, number / count);
  if (number < kMaxTopLogprobs) sorted[number] = 0;
  cluster_sync();
  if (number >= total || all[number] == 0) return;
  int rank = 0;
  for (int i = 0; i < total; ++i) rank += all[i] > all[number];
  if (rank < count) sorted[rank] = all[number];
}

// Writes the log-probabilities of `token` and of the `num_top` most likely tokens to `out`. `maximum`: the row's
// largest logit.
__device__ __noinline__ void describe(const float* logits, float maximum, int token, int num_top, DrawnLogprobs& out) {
  __shared__ u64 top[kMaxTopLogprobs];
  const Row row{logits, nullptr, 1.0f, maximum, 0.0f};
  const u64 weights = row_sum(logits, [&](int, float logit) { return row.weight(row.likelihood(logit)); });
  const float chosen = __ldcg(logits + token);
  const u64 above = row_sum(logits, [&](int, float logit) -> u64 { return logit > chosen; });
  find_top(logits, num_top, top);
  __syncthreads();
  if (cluster_rank() > 0 || threadIdx.x > kMaxTopLogprobs) return;
  const double normaliser = maximum + log(static_cast<double>(weights) / kUnit);
  if (threadIdx.x == kMaxTopLogprobs) {
    out.logprob = static_cast<float>(chosen - normaliser);
    out.rank = static_cast<int>(above) + 1;
    return;
  }
  const u64 key = static_cast<int>(threadIdx.x) < num_top ? top[threadIdx.x] : 0;
  const bool exists = key > 0 && !isinf(logit_of(key));
  out.tokens[threadIdx.x] = exists ? id_of(key) : -1;
  out.logprobs[threadIdx.x] = exists ? static_cast<float>(logit_of(key) - normaliser) : 0.0f;
}

}  // namespace tl
