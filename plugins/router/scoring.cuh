// What a router's scores become: by what experts are chosen, and the shares of the chosen.
//
// Scores are sums of two numbers, those of the two terms of the router's weight, and maybe of a bias. Scores that are
// no numbers count as the least of all, so that every row has experts that exist. Macros: TL_SCORES (numbers of a row:
// the first terms of all experts, the second ones, maybe more), TL_SCORING (Scoring), TL_BIAS and TL_CORRECTION (0 or
// 1), TL_GROUPS, TL_TOP_GROUPS and TL_NUM_BEST (schema.toml), and those of cuda/chosen_experts.cuh.
#pragma once

#include "cuda/chosen_experts.cuh"

namespace tl {

// In the order of schema.toml.
enum class Scoring { kSoftmax, kNormalizedSoftmax, kSoftmaxOfChosen, kSigmoid, kNormalizedSigmoid, kSigmoidOfChosen };
constexpr Scoring kScoring = static_cast<Scoring>(TL_SCORING);
constexpr bool kIsSigmoid = kScoring >= Scoring::kSigmoid;
constexpr bool kIsOfChosen = kScoring == Scoring::kSoftmaxOfChosen || kScoring == Scoring::kSigmoidOfChosen;
// Whether shares are those of a softmax over the chosen: so are those that are divided by their sum.
constexpr bool kSoftmaxOfFew = kScoring == Scoring::kNormalizedSoftmax || kScoring == Scoring::kSoftmaxOfChosen;
// A softmax does not change the order of experts, but that of sums.
constexpr bool kChooseByPowers = !kIsSigmoid && !kIsOfChosen && (TL_CORRECTION != 0 || TL_NUM_BEST > 1);
constexpr bool kNeedsTotal = kScoring == Scoring::kSoftmax || kChooseByPowers;  // of powers of all experts

constexpr float kLeast = -3.402823e38f;
static_assert(TL_SCORES >= 2 * kExperts);
static_assert(kExperts % TL_GROUPS == 0 && TL_TOP_GROUPS * (kExperts / TL_GROUPS) >= kTopK);

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) x += __shfl_xor_sync(0xffffffffu, x, bits);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, bits));
  return x;
}

// A row of scores in any memory. `bias` [experts] is read where TL_BIAS is 1, `correction` [experts] where
// TL_CORRECTION is; `scale` is a factor of all shares.
struct ScoreRow {
  const float* scores;
  const float* bias;
  const float* correction;
  float scale;

  __device__ __forceinline__ float operator[](int e) const {
    return fmaxf(scores[e] + scores[kExperts + e] + (TL_BIAS != 0 ? bias[e] : 0.0f), kLeast);
  }
  // By what an expert of this score is chosen. `largest` is that of all scores, `total` the sum of their powers.
  __device__ __forceinline__ float chosen_by(int e, float score, float largest, float total) const {
    if (score == kLeast) return kLeast;
    if constexpr (kChooseByPowers) score = __expf(score - largest) / total;
    if constexpr (kScoring == Scoring::kSigmoid || kScoring == Scoring::kNormalizedSigmoid) score = sigmoid(score);
    return fmaxf(TL_CORRECTION != 0 ? score + correction[e] : score, kLeast);
  }
  // Shares of the chosen, each of which a lane has by its `score`; other lanes get zero.
  __device__ __forceinline__ float share(bool has_one, float score, float largest, float total) const {
    if constexpr (kSoftmaxOfFew) largest = warp_max(has_one ? score : kLeast);
    const float value = !has_one ? 0.0f : kIsSigmoid ? sigmoid(score) : __expf(score - largest);
    if constexpr (kSoftmaxOfFew) total = warp_sum(value);
    if constexpr (kScoring == Scoring::kNormalizedSigmoid) total = warp_sum(value) + 1e-20f;
    return (!kIsSigmoid || kScoring == Scoring::kNormalizedSigmoid ? value / total : value) * scale;
  }
};

}  // namespace tl
