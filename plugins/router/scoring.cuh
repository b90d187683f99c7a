// How experts are chosen by a router's scores, and the shares of the chosen experts.
//
// A score is the sum of two numbers, from the two terms of the router's weight, and of a bias if there is one. NaN
// counts as the lowest score, so that every row has valid experts. Macros: TL_SCORES (numbers in a row: the first terms
// of all scores, the second terms, maybe padding), TL_SCORING (Scoring), TL_SCORE_BIAS, TL_CORRECTION and TL_FACTORS (0
// or 1), TL_GROUPS, TL_TOP_GROUPS and TL_NUM_BEST (schema.toml), TL_SHARED (how many of a row's experts all rows
// share), TL_SHARED_GATE (1: the last score makes the share of these), and those of cuda/chosen_experts.cuh.
#pragma once

#include "cuda/activation.cuh"
#include "cuda/chosen_experts.cuh"
#include "cuda/warp_reduce.cuh"

namespace tl {

// The scorings in the order of schema.toml.
enum class Scoring {
  kSoftmax,
  kNormalizedSoftmax,
  kSoftmaxOfChosen,
  kSigmoid,
  kNormalizedSigmoid,
  kSigmoidOfChosen,
  kSparseMixer
};
constexpr Scoring kScoring = static_cast<Scoring>(TL_SCORING);
constexpr bool kIsMixer = kScoring == Scoring::kSparseMixer;
constexpr bool kIsSigmoid = kScoring >= Scoring::kSigmoid && !kIsMixer;
constexpr bool kIsOfChosen = kScoring == Scoring::kSoftmaxOfChosen || kScoring == Scoring::kSigmoidOfChosen || kIsMixer;
// Whether shares are a softmax over the chosen experts. This includes softmax shares that are divided by their sum.
constexpr bool kSoftmaxOfFew = kScoring == Scoring::kNormalizedSoftmax || kScoring == Scoring::kSoftmaxOfChosen;
// A softmax keeps the order of experts, but not the order of sums of their scores.
constexpr bool kChooseByPowers = !kIsSigmoid && !kIsOfChosen && (TL_CORRECTION != 0 || TL_NUM_BEST > 1);
// whether the sum of the powers of all experts is needed
constexpr bool kNeedsTotal = kScoring == Scoring::kSoftmax || kChooseByPowers;

constexpr float kLeast = -3.402823e38f;
// The experts among which rows choose, and how many a row chooses; the shared ones come after these.
constexpr int kCandidates = kExperts - TL_SHARED, kChoices = kTopK - TL_SHARED;
constexpr int kScores = kCandidates + TL_SHARED_GATE;
static_assert(TL_SCORES >= 2 * kScores);
static_assert(kChoices >= 1 && TL_SHARED_GATE <= TL_SHARED);
static_assert(kCandidates % TL_GROUPS == 0 && TL_TOP_GROUPS * (kCandidates / TL_GROUPS) >= kChoices);

// Maps numbers to integers of the same order, all greater than 0; 0 means none.
__device__ __forceinline__ u32 rank_of(float x) {
  const u32 bits = __float_as_uint(x + 0.0f);  // makes -0 equal to +0
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float of_rank(u32 rank) {
  return __uint_as_float(rank >> 31 != 0 ? rank ^ 0x80000000u : ~rank);
}

// The largest score in a warp.
__device__ __forceinline__ float largest_score(float score) {
  return of_rank(__reduce_max_sync(0xffffffffu, rank_of(score)));
}

// The sum of what the lanes of chosen experts have, in these lanes.
__device__ __forceinline__ float sum_of_chosen(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    if (distance < kChoices) value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// A row of scores, which an earlier kernel may have written after this one began: L1 is not asked. `bias` [kCandidates]
// is read if TL_SCORE_BIAS is 1; `scale` is a factor of the shares of chosen experts, `threshold` that of SparseMixer;
// `factors` [kCandidates] has a factor of each expert's shares if TL_FACTORS is 1.
struct ScoreRow {
  const float* scores;
  const float* bias;
  float scale, threshold;
  const float* factors;

  __device__ __forceinline__ float operator[](int e) const { return score(e, TL_SCORE_BIAS != 0 ? bias[e] : 0.0f); }
  __device__ __forceinline__ float score(int e, float of_bias) const {
    return fmaxf(__ldcg(scores + e) + __ldcg(scores + kScores + e) + of_bias, kLeast);
  }
  // The share of each shared expert.
  __device__ __forceinline__ float shared() const {
    if constexpr (TL_SHARED_GATE == 0) return 1.0f;
    return sigmoid(__ldcg(scores + kCandidates) + __ldcg(scores + kScores + kCandidates));
  }
  // The value by which an expert with this score is chosen. `correction`: that of the expert; `largest`: the largest of
  // all scores; `total`: the sum of their powers.
  __device__ __forceinline__ static float chosen_by(float score, float correction, float largest, float total) {
    if (score == kLeast) return kLeast;
    if constexpr (kChooseByPowers) score = __expf(score - largest) / total;
    if constexpr (kScoring == Scoring::kSigmoid || kScoring == Scoring::kNormalizedSigmoid) score = sigmoid(score);
    return fmaxf(TL_CORRECTION != 0 ? score + correction : score, kLeast);
  }
  // Whether SparseMixer leaves out an expert with this score when it shares out to one with the score `best`.
  __device__ __forceinline__ bool is_far(float score, float best) const {
    return best - score > threshold * fmaxf(fabsf(score), best);
  }
  // The factor of the expert's shares, without `scale`.
  __device__ __forceinline__ float factor(int expert) const { return TL_FACTORS != 0 ? factors[expert] : 1.0f; }
  // The share of the expert whose `score` this lane has, if it is one of the first kChoices lanes (`has_one`).
  __device__ __forceinline__ float share(bool has_one, float score, float largest, float total) const {
    if constexpr (kSoftmaxOfFew) largest = largest_score(has_one ? score : kLeast);
    const float value = !has_one ? 0.0f : kIsSigmoid ? sigmoid(score) : __expf(score - largest);
    if constexpr (kSoftmaxOfFew) total = sum_of_chosen(value);
    if constexpr (kScoring == Scoring::kNormalizedSigmoid) total = sum_of_chosen(value) + 1e-20f;
    return (!kIsSigmoid || kScoring == Scoring::kNormalizedSigmoid ? value / total : value) * scale;
  }
};

}  // namespace tl
