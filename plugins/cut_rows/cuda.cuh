// CutRows: y = max(x - mean - factor * deviation, 0) of each row.
//
// Bytes: 4 * features a row. FLOPs: about 2 a byte. Floor: bytes / bandwidth; of few rows latency, about 2 us. One
// block a row, which stays in registers; its variance is that of the centred values. Launch: grid = rows, TL_THREADS
// threads. Macros: TL_FEATURES (a multiple of 8), TL_THREADS (a multiple of 32), TL_FP16.
#include "cuda/block_sum.cuh"

namespace tl {

constexpr int kVectors = TL_FEATURES / 8, kCount = ceil_div(kVectors, TL_THREADS);
static_assert(TL_FEATURES % 8 == 0 && TL_THREADS % 32 == 0);

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS) cut_rows(uint4* y, const uint4* x, float times) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = static_cast<u64>(blockIdx.x) * kVectors;
  float values[kCount][8], total = 0.0f, squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
    unpack8(x[row + vector], values[i]);
#pragma unroll
    for (int j = 0; j < 8; ++j) total += values[i][j];
  }
  const float mean = block_sum<0>(total) / TL_FEATURES;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (threadIdx.x + i * TL_THREADS >= kVectors) break;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      values[i][j] -= mean;
      squares += values[i][j] * values[i][j];
    }
  }
  const float cut = times * sqrtf(block_sum<1>(squares) / TL_FEATURES);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float above = values[i][j] - cut;
      values[i][j] = above < 0.0f ? 0.0f : above;  // NaN stays
    }
    y[row + vector] = pack8(values[i]);
  }
}
