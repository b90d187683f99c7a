// GroupedGatedLinear for many rows on sm_90a, of rows that are sorted by expert: y = activation(g) * u with g, u = x @
// w[0].T, w[1].T, where w are the weights of the row's expert.
//
// Bytes: 4*I*K for each chosen expert, 2*(K + I) a row. FLOPs: 4*I*K a row. Floor: bytes / bandwidth up to about 180
// rows an expert (128 experts of I = 768, K = 2048: 805 MB, 180 us at 4.47 TB/s), FLOPs / rate from there on. Launch
// and macros as in cuda/tiled_linear.cuh, gated_linear/tiled.cuh and cuda/chosen_experts.cuh.
#include "cuda/grouped_tiles.cuh"
#include "gated_linear/tiled_op.cuh"

extern "C" __global__ void __launch_bounds__(tl::kTiledThreads, 1)
    grouped_gated_linear_tiled(const __grid_constant__ tl::TensorMap x, const __grid_constant__ tl::TensorMap weight,
                               void* y, const void* weight_scale, const void* weight_offset, const float* row_scales,
                               const int* groups, float x_scale) {
  const tl::ProductScales scales{static_cast<const float*>(weight_scale), row_scales, x_scale};
  const tl::TiledGatedOp op{y, nullptr, scales, {weight_scale, weight_offset}, 0.0f};
  tl::tiled_linear(x, weight, 0, tl::Grouped<tl::TiledGatedOp>(op, {groups}));
}
