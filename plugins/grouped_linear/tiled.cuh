// Linear for many rows on sm_90a that are sorted by expert: y = x @ w.T [+ b], where w and b belong to the row's
// expert.
//
// Bytes: 2*N*K for each chosen expert, 2*(K + N) per row. FLOPs: 2*N*K per row. Floor: see
// grouped_gated_linear/tiled.cuh (128 experts of N = 2048, K = 768: 403 MB, 90 us at 4.47 TB/s). Launch and macros: see
// cuda/tiled_linear.cuh and cuda/chosen_experts.cuh; TL_BIAS (0 or 1).
#define TL_RESIDUAL 0
#define TL_FLOAT_OUT 0
#define TL_ACTIVATION 0
#define TL_ROWS_ON 0
#include "cuda/grouped_tiles.cuh"
#include "linear/tiled_op.cuh"

extern "C" __global__ void __launch_bounds__(tl::kTiledThreads, 1)
    grouped_linear_tiled(const __grid_constant__ tl::TensorMap x, const __grid_constant__ tl::TensorMap weight, void* y,
                         const void* weight_scale, const void* weight_offset, const float* bias, const int* groups) {
  const tl::ProductScales scales{static_cast<const float*>(weight_scale), nullptr, 0.0f};
  const tl::TiledLinearOp op{{y, nullptr}, bias, nullptr, scales, {weight_scale, weight_offset}};
  tl::tiled_linear(x, weight, 0, tl::Grouped<tl::TiledLinearOp>(op, {groups}));
}
