// Online softmax (arXiv 2205.14135) over mma.sync accumulators, in base 2. A lane holds rows lane / 4 and lane / 4 + 8
// of a 16-row tile and, of each 8 keys, columns 2 * (lane % 4) and + 1.
#pragma once

#include "cuda/async.cuh"
#include "cuda/fast_math.cuh"

namespace tl {

constexpr float kNoMaximum = -1e30f;  // finite, so that minus infinity minus this is not NaN

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Sets scores of keys j > high to minus infinity.
template <int kFragments>
__device__ __forceinline__ void mask_scores_above(float (&scores)[kFragments][4], const int (&high)[2], int lane) {
#pragma unroll
  for (int i = 0; i < kFragments * 4; ++i) {
    if (i / 4 * 8 + i % 2 > high[i % 4 / 2] - lane % 4 * 2) scores[i / 4][i % 4] = __int_as_float(0xff800000);
  }
}
// Sets scores of keys j <= low to minus infinity.
template <int kFragments>
__device__ __forceinline__ void mask_scores_up_to(float (&scores)[kFragments][4], const int (&low)[2], int lane) {
#pragma unroll
  for (int i = 0; i < kFragments * 4; ++i) {
    if (i / 4 * 8 + i % 2 <= low[i % 4 / 2] - lane % 4 * 2) scores[i / 4][i % 4] = __int_as_float(0xff800000);
  }
}

// Converts weights from the accumulator layout to A fragments of float16, or of bfloat16.
template <bool kFp16 = TL_FP16, int kFragments>
__device__ __forceinline__ void pack_weights(const float (&scores)[kFragments][4], u32 (&weights)[kFragments / 2][4]) {
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float lo = scores[n][half * 2], hi = scores[n][half * 2 + 1];
      weights[n / 2][half + n % 2 * 2] = kFp16 ? pack2_float16(lo, hi) : pack2(lo, hi);
    }
  }
}

struct RowState {
  float maximum[2] = {kNoMaximum, kNoMaximum};  // maximum of the scaled scores
  float sum[2] = {0.0f, 0.0f};                  // sum over this lane's columns only

  // Starts new rows, and puts the sums of the old ones into `sums`.
  __device__ __forceinline__ void restart(float (&sums)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) sums[half] = sum[half];
    *this = RowState{};
  }
  // Called after all keys of a row: adds one more key, with this exponent and value zero. A sink far above all scores
  // makes the sum infinite and the output zero.
  __device__ __forceinline__ void add_sink(int half, float exponent, int lane) {
    if (lane % 4 == 0) sum[half] += exp2_fast(exponent - maximum[half]);
  }
  // Converts scores to weights. The output so far must then be multiplied by `correction` (rescale). Masked scores stay
  // far below all others after scaling, since scale is positive.
  template <int kFragments>
  __device__ __forceinline__ void weigh(float (&scores)[kFragments][4], float (&correction)[2], float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float now = kNoMaximum;
#pragma unroll
      for (int n = 0; n < kFragments; ++n) now = fmaxf(now, fmaxf(scores[n][half * 2], scores[n][half * 2 + 1]));
      const float next = fmaxf(maximum[half], quad_max(now) * scale);
      correction[half] = exp2_fast(maximum[half] - next);
      maximum[half] = next;
      float total = 0.0f;
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          scores[n][i] = exp2_fast(scores[n][i] * scale - next);
          total += scores[n][i];
        }
      }
      sum[half] = sum[half] * correction[half] + total;
    }
  }

  template <int kOutputs>
  __device__ __forceinline__ static void rescale(float (&output)[kOutputs][4], const float (&correction)[2]) {
#pragma unroll
    for (int i = 0; i < kOutputs * 4; ++i) output[i / 4][i % 4] *= correction[i % 4 / 2];
  }

  // Like weigh(), but writes A fragments for the product with the values, and rescales the output.
  template <int kFragments, int kOutputs>
  __device__ __forceinline__ void add(float (&scores)[kFragments][4], u32 (&weights)[kFragments / 2][4],
                                      float (&output)[kOutputs][4], float scale) {
    float correction[2];
    weigh(scores, correction, scale);
    pack_weights(scores, weights);
    rescale(output, correction);
  }
};

}  // namespace tl
