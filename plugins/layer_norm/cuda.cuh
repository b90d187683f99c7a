// LayerNorm: sum = x [+ residual]; y = (sum - mean) / sqrt(variance + epsilon) * weight [+ bias]. `sum` is rounded to
// 16 bits first, so that y is the norm of the stored sum.
//
// Bytes: 4 * hidden a row, 8 with a residual. FLOPs: about 4 a byte. Floor: bytes / bandwidth, as in rms_norm/cuda.cuh.
// One block a row; the row stays in registers, and its variance is that of the centred values. Launch: grid = rows,
// TL_THREADS threads. Macros: TL_HIDDEN, TL_THREADS (a multiple of 32), TL_RESIDUAL, TL_BIAS.
#include "cuda/block_sum.cuh"

namespace tl {

constexpr int kVectors = TL_HIDDEN / 8, kCount = ceil_div(kVectors, TL_THREADS);
static_assert(TL_HIDDEN % 8 == 0 && TL_THREADS % 32 == 0);

__device__ __forceinline__ void load8(float (&values)[8], const float* from) {
  *reinterpret_cast<float4*>(values) = reinterpret_cast<const float4*>(from)[0];
  *reinterpret_cast<float4*>(values + 4) = reinterpret_cast<const float4*>(from)[1];
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    layer_norm(tl::u16* y, tl::u16* sum, const tl::u16* x, const float* weight, const tl::u16* residual,
               const float* bias, float epsilon) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = static_cast<u64>(blockIdx.x) * kVectors;
  float values[kCount][8];
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
    unpack8(reinterpret_cast<const uint4*>(x)[row + vector], values[i]);
    if (TL_RESIDUAL) {
      float other[8];
      unpack8(reinterpret_cast<const uint4*>(residual)[row + vector], other);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[i][j] += other[j];
      const uint4 rounded = pack8(values[i]);
      reinterpret_cast<uint4*>(sum)[row + vector] = rounded;
      unpack8(rounded, values[i]);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) total += values[i][j];
  }
  const float mean = block_sum<0>(total) / TL_HIDDEN;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (threadIdx.x + i * TL_THREADS >= kVectors) break;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      values[i][j] -= mean;
      squares += values[i][j] * values[i][j];
    }
  }
  const float inverse = rsqrtf(block_sum<1>(squares) / TL_HIDDEN + epsilon);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
    float scale[8], offset[8] = {};
    load8(scale, weight + vector * 8);
    if (TL_BIAS) load8(offset, bias + vector * 8);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[i][j] = values[i][j] * (inverse * scale[j]) + offset[j];
    reinterpret_cast<uint4*>(y)[row + vector] = pack8(values[i]);
  }
}
