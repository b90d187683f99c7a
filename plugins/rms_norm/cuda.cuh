// RmsNorm: sum = x + residual; y = sum / sqrt(mean(sum^2) + epsilon) * weight, for many rows (few rows: the prologue of
// cuda/load_rows.cuh). `sum` is rounded to 16 bits first, so that y belongs to the residual stream as stored.
//
// Bytes: 4 * hidden a row, 8 with a residual. FLOPs: about 4 a byte. Floor: bytes / bandwidth (2048 rows of 4096 with a
// residual: 67 MB, 15.7 us at the 4.26 TB/s of a copy). One block a row; the row stays in registers.
// With a TL_Y_TYPE of bytes (RowType), y is rounded to 16 bits and then to that under `y_scale`, that of all rows, or,
// with TL_ROW_SCALES, the least; each row's goes to `row_scales`.
//
// Launch: grid = rows, TL_THREADS threads. Macros: TL_HIDDEN, TL_THREADS (a multiple of 32), TL_RESIDUAL, TL_Y_TYPE,
// TL_ROW_SCALES (0 or 1).
#include "cuda/block_max.cuh"
#include "cuda/block_sum.cuh"
#include "cuda/byte_rows.cuh"

namespace tl {

constexpr int kVectors = TL_HIDDEN / 8, kCount = ceil_div(kVectors, TL_THREADS);
constexpr RowType kYType = static_cast<RowType>(TL_Y_TYPE);
constexpr bool kByteRows = kYType != RowType::k16Bits;
static_assert(TL_HIDDEN % 8 == 0 && TL_THREADS % 32 == 0);

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    rms_norm(void* y, float* row_scales, tl::u16* sum, const tl::u16* x, const float* weight, const tl::u16* residual,
             float epsilon, float y_scale) {
  using namespace tl;
  float scales[kCount][8];  // constants, so this need not wait for the previous kernel
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
    const float4* from = reinterpret_cast<const float4*>(weight) + vector * 2;
    *reinterpret_cast<float4*>(scales[i]) = from[0];
    *reinterpret_cast<float4*>(scales[i] + 4) = from[1];
  }
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = static_cast<u64>(blockIdx.x) * kVectors;
  uint4 seen[kCount];  // packed, so that more blocks fit
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector < kVectors) seen[i] = reinterpret_cast<const uint4*>(x)[row + vector];
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
    float values[8];
    unpack8(seen[i], values);
    if (TL_RESIDUAL) {
      float other[8];
      unpack8(reinterpret_cast<const uint4*>(residual)[row + vector], other);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] += other[j];
      seen[i] = pack8(values);
      reinterpret_cast<uint4*>(sum)[row + vector] = seen[i];
      unpack8(seen[i], values);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += values[j] * values[j];
  }
  float largest = 0.0f;
  const float inverse = rsqrtf(block_sum(squares) / TL_HIDDEN + epsilon);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
    float values[8];
    unpack8(seen[i], values);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] *= inverse * scales[i][j];
    seen[i] = pack8(values);
    if (TL_ROW_SCALES) largest = fmaxf(largest, largest_magnitude(seen[i]));
    if (!kByteRows) static_cast<uint4*>(y)[row + vector] = seen[i];
  }
  if constexpr (kByteRows) {
    if constexpr (TL_ROW_SCALES) {
      y_scale = scale_of_row<kYType>(block_max(largest), y_scale);
      if (threadIdx.x == 0) row_scales[blockIdx.x] = y_scale;
    }
    const float factor = 1.0f / y_scale;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int vector = threadIdx.x + i * TL_THREADS;
      if (vector < kVectors) static_cast<uint2*>(y)[row + vector] = pack8_bytes<kYType>(seen[i], factor);
    }
  }
}
