// top_n_sigma keeps the logits that are at most n standard deviations below the largest, as in
// csrc/sampling/truncation.cc. The deviation is taken over all finite logits of tokens that may be drawn.
//
// Sums are of whole steps into which the range of the row is cut, so that they do not depend on their order.
#pragma once

#include "sample/best.cuh"

namespace tl {

constexpr float kSteps = 0x1p21f - 1;  // steps that divide the range of a row
constexpr int kStepsBits = 42;         // bits of their sum; the number of tokens is in the bits above it
static_assert(TL_VOCAB <= 1 << 21, "the squares of a row's steps must stay below 2^64");

// The key of the least scaled logit that stays, in every thread. `largest`: the largest logit, which is finite.
__device__ __noinline__ u32 within_sigma(const Row& row, float largest, float n) {
  const auto counts = [&](int id, float logit) { return !isinf(logit) && row.allows(id); };
  Best lowest;
  visit_row(row.logits, cluster_rank() * kThreads + threadIdx.x, kBlocks * kThreads, [&](int id, float logit) {
    if (counts(id, logit)) lowest.add(id, -logit);
  });
  // Halves do not overflow.
  const float half_range = 0.5f * largest + 0.5f * logit_of(row_max(lowest.key()));
  if (half_range < 1e-30f) return sort_bits(row.scaled(largest));
  const auto steps = [&](float logit) -> u64 {
    return __float2ull_rn((0.5f * largest - 0.5f * logit) / half_range * kSteps);
  };
  const u64 sums = row_sum(row.logits, [&](int id, float logit) -> u64 {
    return counts(id, logit) ? (1ull << kStepsBits) + steps(logit) : 0;
  });
  const u64 squares = row_sum(
      row.logits, [&](int id, float logit) -> u64 { return counts(id, logit) ? steps(logit) * steps(logit) : 0; });
  const double count = static_cast<double>(sums >> kStepsBits);
  const double mean = static_cast<double>(sums & ((1ull << kStepsBits) - 1)) / count;
  const double variance = static_cast<double>(squares) / count - mean * mean;
  const double sigma = sqrt(variance > 0.0 ? variance : 0.0) * (2.0 * half_range / kSteps);
  return sort_bits(row.scaled(static_cast<float>(largest - n * sigma)));
}

}  // namespace tl
