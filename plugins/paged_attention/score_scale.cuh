// From products of queries and keys to exponents of two: the scale, a temperature of late queries where TL_TEMPERATURE
// is 1 (arXiv 2501.19399), and a soft cap where TL_SOFTCAP is 1.
//
// A cap makes cap * tanh(s / cap) of a score s. As tanh(y) = 2 / (1 + e^-2y) - 1, and a softmax does not see what all
// of its scores have in common, 2 * cap / (1 + e^(-2 s / cap)) does as well. ex2.approx is right to 2^-22 and
// rcp.approx to 2^-23 of the result, sums to 2^-24, so that the quotient is off by at most 2^-22 / 4 + 2^-24 + 2^-23 =
// 2^-22 and a score by cap * 2^-21: 2.4e-5 for a cap of 50. tanh.approx, one instruction for the two, may be off by
// 2^-11 of the score: 2.4e-2 near that cap, where rounding a weight to bfloat16 changes it by 2^-9 = 2e-3 and to
// float16 by 2^-12.
#pragma once

#include "cuda/fast_math.cuh"

namespace tl {

struct ScoreScale {
  float scale;  // of products; includes log2(e)
#if TL_SOFTCAP
  float rate, height;  // -2 / cap and 2 * cap * log2(e)
#endif
#if TL_TEMPERATURE
  int floor_scale, floor_offset;
  float attn_scale;
#endif

  // What products of the query at `position` are multiplied with besides.
  __device__ __forceinline__ float temperature(int position) const {
#if TL_TEMPERATURE
    return 1.0f + attn_scale * logf(1.0f + (position + floor_offset) / floor_scale);
#else
    return 1.0f;
#endif
  }
  // The scale of products of the query at `position`, so that nothing need be tuned.
  __device__ __forceinline__ ScoreScale at(int position) const {
    ScoreScale own = *this;
    own.scale *= temperature(position);
    return own;
  }
  // Multiplies products of two rows, as accumulators have them, with the rows' temperatures.
  template <int kFragments>
  __device__ __forceinline__ void tune(float (&products)[kFragments][4], const float (&temperatures)[2]) const {
#if TL_TEMPERATURE
#pragma unroll
    for (int i = 0; i < kFragments * 4; ++i) products[i / 4][i % 4] *= temperatures[i % 4 / 2];
#endif
  }
  // Before masking: products into what factor() makes exponents of.
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
  // The exponent of a sink, a score as it is, beside those of keys.
  __device__ __forceinline__ float exponent_of(float sink) const {
    constexpr float kLog2E = 1.4426950408889634f;
#if TL_SOFTCAP
    return sink * kLog2E + 0.5f * height;  // what the others have in common
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
