// Converts products of queries and keys to exponents of two: applies the scale, a temperature of late queries if
// TL_TEMPERATURE is 1 (arXiv 2501.19399), and a soft cap if TL_SOFTCAP is 1.
//
// A soft cap replaces a score s by cap * tanh(s / cap). As tanh(y) = 2 / (1 + e^-2y) - 1, and a softmax is invariant to
// adding a constant to all scores, 2 * cap / (1 + e^(-2 s / cap)) does as well. ex2.approx is accurate to 2^-22 and
// rcp.approx to 2^-23 of the result, sums to 2^-24, so that the error of the quotient is at most 2^-22 / 4 + 2^-24 +
// 2^-23 = 2^-22 and the error of a score is cap * 2^-21: 2.4e-5 for a cap of 50. tanh.approx, one instruction instead
// of the two, may be off by 2^-11 of the score: 2.4e-2 near that cap. For comparison, rounding a weight to bfloat16
// changes it by 2^-9 = 2e-3, to float16 by 2^-12.
#pragma once

#include "cuda/fast_math.cuh"

namespace tl {

struct ScoreScale {
  float scale;  // factor of products; includes log2(e)
#if TL_SOFTCAP
  float rate, height;  // -2 / cap and 2 * cap * log2(e)
#endif
#if TL_TEMPERATURE
  int floor_scale, floor_offset;
  float attn_scale;
#endif

  // An additional factor of the products of the query at `position`.
  __device__ __forceinline__ float temperature(int position) const {
#if TL_TEMPERATURE
    return 1.0f + attn_scale * logf(1.0f + (position + floor_offset) / floor_scale);
#else
    return 1.0f;
#endif
  }
  // This scale with the temperature of the query at `position` included, so that tune() is not needed.
  __device__ __forceinline__ ScoreScale at(int position) const {
    ScoreScale own = *this;
    own.scale *= temperature(position);
    return own;
  }
  // Multiplies the products of two rows, in the accumulator layout, by the rows' temperatures.
  template <int kFragments>
  __device__ __forceinline__ void tune(float (&products)[kFragments][4], const float (&temperatures)[2]) const {
#if TL_TEMPERATURE
#pragma unroll
    for (int i = 0; i < kFragments * 4; ++i) products[i / 4][i % 4] *= temperatures[i % 4 / 2];
#endif
  }
  // Called before masking: applies the soft cap to products, which factor() then makes exponents.
  template <int kFragments>
  __device__ __forceinline__ void cap(float (&scores)[kFragments][4]) const {
#if TL_SOFTCAP
    const float slope = scale * rate;
#pragma unroll
    for (int i = 0; i < kFragments * 4; ++i) {
      float& score = scores[i / 4][i % 4];
      score = reciprocal_fast(1.0f + exp2_fast(score * slope));
    }
#endif
  }
  // The exponent of a sink, given as a final score, for comparison with those of keys.
  __device__ __forceinline__ float exponent_of(float sink) const {
    constexpr float kLog2E = 1.4426950408889634f;
#if TL_SOFTCAP
    return sink * kLog2E + 0.5f * height;  // adds the constant that cap() leaves out
#else
    return sink * kLog2E;
#endif
  }
  __device__ __forceinline__ float factor() const {
#if TL_SOFTCAP
    return height;
#else
    return scale;
#endif
  }
};

}  // namespace tl
