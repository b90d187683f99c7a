// The product of grouped_linear/tiled.cuh by swap-AB, for groups of at most 64 rows and weights that are dequantized.
// Launch and macros: see cuda/swap_ab_linear.cuh.
#include "cuda/grouped_tiles.cuh"
#include "cuda/swap_ab_linear.cuh"

namespace tl {

struct SwapAbLinearOp {
  static constexpr int kParts = 1, kRun = kTileColumns, kHalfRun = 8;
  u16* y;
  BlockNumbers numbers;
  const float* bias;  // [TL_OUT], of the tile's expert

  __device__ __forceinline__ static int weight_row(int first, int column) { return first + column; }
  // Finishes the sums of features `feature` and `feature` + 8, counted from `column`, for rows `row` and `row` + 1 of
  // every eight.
  template <int kFragments>
  __device__ __forceinline__ void finish(const float (&sums)[kFragments][4], int row, int rows, int column,
                                         int feature) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (column + half * 8 >= TL_OUT) return;
      const int at = column + half * 8 + feature;
      const float added = TL_BIAS ? bias[at] : 0.0f;
#pragma unroll
      for (int i = 0; i < kFragments * 2; ++i) {
        const int r = row + i / 2 * 8 + i % 2;
        if (r < rows) y[static_cast<u64>(r) * TL_OUT + at] = pack1(sums[i / 2][half * 2 + i % 2] + added);
      }
    }
  }
};

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kSwapAbThreads, 1)
    grouped_linear_swap_ab(const __grid_constant__ tl::TensorMap x, const __grid_constant__ tl::TensorMap weight,
                           tl::u16* y, const void* weight_scale, const void* weight_offset, const float* bias,
                           const int* groups) {
  const tl::SwapAbLinearOp op{y, {weight_scale, weight_offset}, bias};
  tl::swap_ab_linear(x, weight, 0, tl::Grouped<tl::SwapAbLinearOp>(op, {groups}));
}
