// Linear for many rows on sm_90a: y = x @ weight.T [+ bias] [+ residual], 16-bit rows or bytes in.
//
// Bytes: N*K*2 for the weights, 2*M*(K + N) for the rows. FLOPs: 2*M*N*K. Floor: FLOPs / rate from about 180 rows on,
// the weights' bytes / bandwidth below (N = 4096, K = 14336: 117 MB, 26 us at 4.47 TB/s).
// Launch and macros as in cuda/tiled_linear.cuh, and TL_BIAS, TL_RESIDUAL (0 or 1), TL_FLOAT_OUT (1: y is float32),
// TL_ACTIVATION (cuda/activation.cuh; of the result and its bias), those of cuda/peer_rows.cuh.
#include "linear/tiled_op.cuh"

extern "C" __global__ void TL_TILED_CLUSTER __launch_bounds__(tl::kTiledThreads, 1)
    linear_tiled(const __grid_constant__ tl::TensorMap x, const __grid_constant__ tl::TensorMap weight, void* y,
                 const void* weight_scale, const void* weight_offset, const float* row_scales, const float* bias,
                 tl::u16* residual, const tl::RankTable* ranks, float x_scale, int rows) {
  const tl::ProductScales scales{static_cast<const float*>(weight_scale), row_scales, x_scale};
  const tl::TiledLinearOp op{{y, ranks}, bias, residual, scales, {weight_scale, weight_offset}};
  tl::tiled_linear(x, weight, rows, op);
}
