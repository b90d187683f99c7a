// RmsNorm: sum = x + residual; y = sum / sqrt(mean(sum^2) + epsilon) * weight, for many rows (few rows: the prologue of
// cuda/load_rows.cuh). `sum` is rounded to 16 bits first, so that y is the norm of the stored sum.
//
// Bytes: 4 * hidden a row, 8 with a residual. FLOPs: about 4 a byte. Floor: bytes / bandwidth (2048 rows of 4096 with a
// residual: 67 MB, 15.7 us at the 4.26 TB/s of a copy). One block a row; the row stays in registers.
//
// Launch: grid = rows, TL_THREADS threads. Macros: TL_RESIDUAL (0 or 1), those of cuda/norm_row.cuh.
#include "cuda/norm_row.cuh"

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    rms_norm(void* y, float* row_scales, tl::u16* sum, const tl::u16* x, const float* weight, const tl::u16* residual,
             float epsilon, float y_scale) {
  using namespace tl;
  allow_next_kernel();
  const NormWeight weights(weight);
  wait_for_previous_kernel();
  const u64 row = static_cast<u64>(blockIdx.x) * kVectors;
  uint4 seen[kCount];  // packed, so that more blocks fit
  for_each_vector([&](int i, int vector) { seen[i] = reinterpret_cast<const uint4*>(x)[row + vector]; });
  if (TL_RESIDUAL) {
    for_each_vector([&](int i, int vector) {
      seen[i] = add8(seen[i], reinterpret_cast<const uint4*>(residual)[row + vector]);
      reinterpret_cast<uint4*>(sum)[row + vector] = seen[i];
    });
  }
  norm_row(seen, weights, blockIdx.x, {y, row_scales, epsilon, y_scale});
}
