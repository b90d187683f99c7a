// QuantizeRows: y = x / y_scale as bytes, 16-bit in; all rows share one scale, or each has its own.
//
// Bytes: 3 * features a row. FLOPs: few. Floor: bytes / bandwidth (2048 rows of 4096: 25 MB, 5.9 us at the 4.26 TB/s of
// a copy). One block a row; the row stays in registers. Launch: grid = rows, TL_THREADS threads. Macros: TL_FEATURES (a
// multiple of 8), TL_THREADS (a multiple of 32), TL_ROW_SCALES (0: `scale` is that of all rows; 1: the least),
// TL_Y_TYPE (RowType).
#include "cuda/block_max.cuh"
#include "cuda/byte_rows.cuh"

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    quantize_rows(uint2* y, float* y_scale, const uint4* x, float scale) {
  using namespace tl;
  constexpr RowType kType = static_cast<RowType>(TL_Y_TYPE);
  constexpr int kVectors = TL_FEATURES / 8, kCount = ceil_div(kVectors, TL_THREADS);
  static_assert(TL_FEATURES % 8 == 0 && TL_THREADS % 32 == 0);
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = static_cast<u64>(blockIdx.x) * kVectors;
  uint4 seen[kCount];
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    seen[i] = vector < kVectors ? x[row + vector] : make_uint4(0, 0, 0, 0);
    if (TL_ROW_SCALES) largest = fmaxf(largest, largest_magnitude(seen[i]));
  }
  if constexpr (TL_ROW_SCALES) {
    scale = scale_of_row<kType>(block_max(largest), scale);
    if (threadIdx.x == 0) y_scale[blockIdx.x] = scale;
  }
  const float factor = 1.0f / scale;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector < kVectors) y[row + vector] = pack8_bytes<kType>(seen[i], factor);
  }
}
