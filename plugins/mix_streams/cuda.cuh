// MixStreams: four mixes of the TL_INPUTS streams of each row, whose factors a router finds by the first stream.
//
// Bytes: 2 * hidden * (TL_INPUTS + 4) a row, and 2 * hidden each for a residual and for `scaled`; the router, 16 *
// hidden, is read from the L2 cache. FLOPs: about 5 a byte. Floor: bytes / bandwidth; of few rows latency, about 2 us.
// One block a row, whose streams stay in registers; of each factor a thread adds the terms. Launch: grid = rows,
// TL_THREADS threads. Macros: TL_HIDDEN (a multiple of 8), TL_INPUTS (4 or 5), TL_RESIDUAL (1: rows are added to the
// first stream), TL_SCALED (1: the first mix is also stored times scale), TL_THREADS (a multiple of 32), TL_FP16.
#include "cuda/async.cuh"
#include "cuda/warp_reduce.cuh"

namespace tl {

constexpr int kInputs = TL_INPUTS, kMostInputs = 5, kOutputs = 4, kModalities = 4, kFactors = kOutputs * kMostInputs;
constexpr int kSums = 1 + kModalities;  // of squares, and of products with each row of the router
constexpr int kVectors = TL_HIDDEN / 8, kCount = ceil_div(kVectors, TL_THREADS), kWarps = TL_THREADS / 32;
static_assert(TL_HIDDEN % 8 == 0 && TL_THREADS % 32 == 0 && kFactors <= 32 && kInputs <= kMostInputs);

struct Weights {
  float4 low, high;
};

__device__ __forceinline__ float dot8(const float (&x)[8], const float* with) {
  const Weights w = *reinterpret_cast<const Weights*>(with);
  return x[0] * w.low.x + x[1] * w.low.y + x[2] * w.low.z + x[3] * w.low.w + x[4] * w.high.x + x[5] * w.high.y +
         x[6] * w.high.z + x[7] * w.high.w;
}

// Eight elements of the first stream, which may be the sum of two rows.
__device__ __forceinline__ void first_stream(float (&x)[8], uint4 packed, uint4 added) {
  unpack8(packed, x);
  if (TL_RESIDUAL) {
    float other[8];
    unpack8(added, other);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] += other[j];
  }
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    mix_streams(uint4* y0, uint4* y1, uint4* y2, uint4* y3, uint4* scaled, const uint4* x0, const uint4* x1,
                const uint4* x2, const uint4* x3, const uint4* x4, const uint4* residual, const float* router,
                const float* weights, const float* scale, float epsilon) {
  using namespace tl;
  __shared__ float partial[kSums * kWarps];  // of each warp
  __shared__ float factors[kFactors];
  const int thread = threadIdx.x;
  float terms[1 + kModalities];  // of the thread's factor
#pragma unroll
  for (int k = 0; k <= kModalities; ++k) terms[k] = thread < kFactors ? weights[k * kFactors + thread] : 0.0f;
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = static_cast<u64>(blockIdx.x) * kVectors;
  const uint4* const streams[] = {x0, x1, x2, x3, x4};
  uint4* const mixes[] = {y0, y1, y2, y3};
  uint4 packed[kCount][kInputs], added[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = thread + i * TL_THREADS;
    if (vector >= kVectors) break;
#pragma unroll
    for (int n = 0; n < kInputs; ++n) packed[i][n] = streams[n][row + vector];
    if (TL_RESIDUAL) added[i] = residual[row + vector];
  }
  float sums[kSums] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = thread + i * TL_THREADS;
    if (vector >= kVectors) break;
    float x[8];
    first_stream(x, packed[i][0], added[i]);
#pragma unroll
    for (int j = 0; j < 8; ++j) sums[0] += x[j] * x[j];
#pragma unroll
    for (int k = 0; k < kModalities; ++k) sums[1 + k] += dot8(x, router + k * TL_HIDDEN + vector * 8);
  }
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    sums[k] = warp_sum(sums[k]);
    if (thread % 32 == 0) partial[k * kWarps + thread / 32] = sums[k];
  }
  __syncthreads();
  if (thread < kFactors) {
#pragma unroll
    for (int k = 0; k < kSums; ++k) {
      sums[k] = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sums[k] += partial[k * kWarps + w];
    }
    const float inverse = rsqrtf(sums[0] / TL_HIDDEN + epsilon);
    float factor = terms[0];
#pragma unroll
    for (int k = 1; k < kSums; ++k) factor += terms[k] * tanhf(sums[k] * inverse);
    factors[thread] = factor;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = thread + i * TL_THREADS;
    if (vector >= kVectors) break;
    float mixed[kOutputs][8] = {};
#pragma unroll
    for (int n = 0; n < kInputs; ++n) {
      float x[8];
      if (n == 0) {
        first_stream(x, packed[i][0], added[i]);
      } else {
        unpack8(packed[i][n], x);
      }
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        const float factor = factors[o * kMostInputs + n];
#pragma unroll
        for (int j = 0; j < 8; ++j) mixed[o][j] += factor * x[j];
      }
    }
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) mixes[o][row + vector] = pack8(mixed[o]);
    if (TL_SCALED) {
#pragma unroll
      for (int j = 0; j < 8; ++j) mixed[0][j] *= scale == nullptr ? 1.0f : scale[vector * 8 + j];
      scaled[row + vector] = pack8(mixed[0]);
    }
  }
}
