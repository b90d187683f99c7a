// The product of grouped_gated_linear/tiled.cuh by swap-AB, for groups of at most 64 rows and weights that are
// dequantized. Launch and macros: see cuda/swap_ab_linear.cuh.
#include "cuda/activation.cuh"
#include "cuda/grouped_tiles.cuh"
#include "cuda/swap_ab_linear.cuh"

namespace tl {

struct SwapAbGatedOp {
  static constexpr int kResults = 1 + TL_SELF_GATED;
  static constexpr int kParts = 2, kRun = kTileColumns / 2, kHalfRun = kRun;
  u16* y;
  BlockNumbers numbers;
  const float* bias;  // [2, TL_OUT], of the tile's expert

  __device__ __forceinline__ static int weight_row(int first, int column) {
    return column / kRun * TL_OUT + first + column % kRun;
  }
  // Finishes the sums of gate and up of feature `feature`, counted from `column`, for rows `row` and `row` + 1 of every
  // eight.
  template <int kFragments>
  __device__ __forceinline__ void finish(const float (&sums)[kFragments][4], int row, int rows, int column,
                                         int feature) const {
    if (column >= TL_OUT) return;
    const int at = column + feature;
    const float gate = TL_BIAS ? bias[at] : 0.0f, up = TL_BIAS ? bias[TL_OUT + at] : 0.0f;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = row + f * 8 + i;
        if (r >= rows) continue;
        const float g = sums[f][i] + gate, u = sums[f][2 + i] + up;
        u16* to = y + static_cast<u64>(r) * kResults * TL_OUT + at;
        if constexpr (TL_SELF_GATED != 0) {
          to[0] = pack1(gated<TL_ACTIVATION>(g, g));
          to[TL_OUT] = pack1(gated<TL_ACTIVATION>(u, u));
        } else {
          to[0] = pack1(gated<TL_ACTIVATION>(g, u));
        }
      }
    }
  }
};

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kSwapAbThreads, 1)
    grouped_gated_linear_swap_ab(const __grid_constant__ tl::TensorMap x, const __grid_constant__ tl::TensorMap weight,
                                 tl::u16* y, const void* weight_scale, const void* weight_offset, const float* bias,
                                 const int* groups) {
  const tl::SwapAbGatedOp op{y, {weight_scale, weight_offset}, bias};
  tl::swap_ab_linear(x, weight, 0, tl::Grouped<tl::SwapAbGatedOp>(op, {groups}));
}
