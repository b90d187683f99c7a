// GatedLinear for many rows on sm_90a: y = activation(g) * u with g, u = x @ weight[0].T, weight[1].T [+ the halves of
// added], 16-bit or bytes in.
//
// Bytes: 2*I*K*2 for the weights, 2*M*(K + I) for the rows. FLOPs: 4*M*I*K. Floor: FLOPs / rate from about 180 rows on
// (M = 256, I = 14336, K = 4096: 60 GFLOP, 76 us at 789 TFLOPS), the weights' bytes / bandwidth (52.5 us) below.
// Launch and macros as in cuda/tiled_linear.cuh; TL_OUT is the number of gated features I, TL_ADDED 0 or 1,
// TL_ACTIVATION as in cuda/activation.cuh. TL_Y_TYPE: the RowType of y, whose bytes have the scale 1 / y_factor.
#include "gated_linear/tiled_op.cuh"

extern "C" __global__ void TL_TILED_CLUSTER __launch_bounds__(tl::kTiledThreads, 1)
    gated_linear_tiled(const __grid_constant__ tl::TensorMap x, const __grid_constant__ tl::TensorMap weight, void* y,
                       const void* weight_scale, const void* weight_offset, const float* row_scales, tl::u16* added,
                       float x_scale, float y_factor, int rows) {
  const tl::ProductScales scales{static_cast<const float*>(weight_scale), row_scales, x_scale};
  tl::tiled_linear(x, weight, rows, tl::TiledGatedOp{y, added, scales, {weight_scale, weight_offset}, y_factor});
}
