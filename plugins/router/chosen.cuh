// The best experts of a row, and their shares, by one warp.
//
// Scores are sums of two numbers, those of the two terms of the router's weight, and maybe of a bias. Of equal scores
// the expert of the lower number is better; scores that are no numbers are worse than all others, so that every row has
// experts that exist. Macros: TL_SCORES (numbers of a row: the first terms of all experts, the second ones, maybe
// more), TL_SCORING (kSoftmax: shares of all experts add up to one; else those of the chosen do), TL_BIAS (0 or 1), and
// those of cuda/chosen_experts.cuh.
#pragma once

#include "cuda/chosen_experts.cuh"

namespace tl {

enum class Scoring { kSoftmax, kSoftmaxOfChosen };
constexpr Scoring kScoring = static_cast<Scoring>(TL_SCORING);
constexpr int kOfLane = ceil_div(kExperts, 32);
// The least score, and less than that: an expert that cannot be chosen any more.
constexpr float kLeast = -3.402823e38f, kNone = -3.402823466e38f;
static_assert(kTopK <= 32, "a lane has each of the chosen");
static_assert(TL_SCORES >= 2 * kExperts);

// Lane i has the row's choice number i.
struct Chosen {
  int expert = 0;
  float share = 0.0f;

  // `bias` [experts], where TL_BIAS is 1.
  __device__ __forceinline__ Chosen(const float* scores, const float* bias, int lane) {
    float values[kOfLane], largest = kNone, score = kNone;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int e = i * 32 + lane;
      const float more = TL_BIAS != 0 && e < kExperts ? bias[e] : 0.0f;
      values[i] = e < kExperts ? fmaxf(scores[e] + scores[kExperts + e] + more, kLeast) : kNone;
      largest = fmaxf(largest, values[i]);
    }
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, bits));
    float total = 0.0f;
    if constexpr (kScoring == Scoring::kSoftmax) {
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) total += __expf(values[i] - largest);
    }
#pragma unroll 1
    for (int slot = 0; slot < kTopK; ++slot) {
      float best = kNone;
      int at = kExperts;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        if (values[i] > best) best = values[i], at = i * 32 + lane;
      }
#pragma unroll
      for (int bits = 16; bits > 0; bits /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, best, bits);
        const int other_at = __shfl_xor_sync(0xffffffffu, at, bits);
        if (other > best || (other == best && other_at < at)) best = other, at = other_at;
      }
      if (lane == slot) expert = at, score = best;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        if (i * 32 + lane == at) values[i] = kNone;
      }
    }
    const float power = lane < kTopK ? __expf(score - largest) : 0.0f;
    if constexpr (kScoring == Scoring::kSoftmaxOfChosen) total = power;
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) total += __shfl_xor_sync(0xffffffffu, total, bits);
    share = power / total;
  }
};

}  // namespace tl
