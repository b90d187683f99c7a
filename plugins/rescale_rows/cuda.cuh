// RescaleRows: each row of x with the root mean square that the same row of `like` has.
//
// Bytes: 6 * features a row. FLOPs: about 1 a byte. Floor: bytes / bandwidth; of few rows latency, about 2 us. One
// block a row, which stays in registers. Launch: grid = rows, TL_THREADS threads. Macros: TL_FEATURES (a multiple of
// 8), TL_THREADS (a multiple of 32), TL_FP16.
#include "cuda/block_sum.cuh"

namespace tl {

constexpr int kVectors = TL_FEATURES / 8, kCount = ceil_div(kVectors, TL_THREADS);
static_assert(TL_FEATURES % 8 == 0 && TL_THREADS % 32 == 0);

__device__ __forceinline__ float squares(uint4 packed) {
  float values[8], sum = 0.0f;
  unpack8(packed, values);
#pragma unroll
  for (int j = 0; j < 8; ++j) sum += values[j] * values[j];
  return sum;
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    rescale_rows(uint4* y, const uint4* x, const uint4* like, float least) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = static_cast<u64>(blockIdx.x) * kVectors;
  uint4 packed[kCount];
  float own = 0.0f, target = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
    packed[i] = x[row + vector];
    own += squares(packed[i]);
    target += squares(like[row + vector]);
  }
  own = block_sum<0>(own) / TL_FEATURES;
  const float factor = sqrtf(block_sum<1>(target) / TL_FEATURES) * rsqrtf(own < least ? least : own);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
    float values[8];
    unpack8(packed[i], values);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] *= factor;
    y[row + vector] = pack8(values);
  }
}
