// The product of gated_linear/tiled.cuh by swap-AB, for at most 64 rows and weights that are dequantized:
// y = activation(g) * u with g, u = x @ weight[0].T, weight[1].T [+ the halves of added].
//
// Launch and macros: see cuda/swap_ab_linear.cuh; TL_OUT is the number of gated features, TL_ADDED 0 or 1,
// TL_ACTIVATION as in cuda/activation.cuh.
#include "cuda/activation.cuh"
#include "cuda/swap_ab_linear.cuh"

namespace tl {

struct SwapAbGatedOp {
  static constexpr int kParts = 2, kRun = kTileColumns / 2, kHalfRun = kRun;
  u16* y;
  BlockNumbers numbers;
  const u16* added;  // [rows, 2 * TL_OUT]

  __device__ __forceinline__ static int weight_row(int first, int column) {
    return column / kRun * TL_OUT + first + column % kRun;
  }
  // Finishes the sums of gate and up of feature `feature`, counted from `column`, for rows `row` and `row` + 1 of every
  // eight.
  template <int kCount>
  __device__ __forceinline__ void finish(const float (&sums)[kCount][4], int row, int rows, int column,
                                         int feature) const {
    if (column >= TL_OUT) return;
    const int at = column + feature;
#pragma unroll
    for (int i = 0; i < kCount * 2; ++i) {
      const int r = row + i / 2 * 8 + i % 2;
      if (r >= rows) continue;
      float gate = sums[i / 2][i % 2], up = sums[i / 2][2 + i % 2];
      if constexpr (TL_ADDED) {
        const u16* more = added + static_cast<u64>(r) * 2 * TL_OUT + at;
        gate += unpack1(more[0]);
        up += unpack1(more[TL_OUT]);
      }
      y[static_cast<u64>(r) * TL_OUT + at] = pack1(gated<TL_ACTIVATION>(gate, up));
    }
  }
};

}  // namespace tl

extern "C" __global__ void TL_TILED_CLUSTER __launch_bounds__(tl::kSwapAbThreads, 1)
    gated_linear_swap_ab(const __grid_constant__ tl::TensorMap x, const __grid_constant__ tl::TensorMap weight,
                         tl::u16* y, const void* weight_scale, const void* weight_offset, const tl::u16* added,
                         int rows) {
  tl::swap_ab_linear(x, weight, rows, tl::SwapAbGatedOp{y, {weight_scale, weight_offset}, added});
}
