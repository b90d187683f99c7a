// The product of linear/tiled.cuh by swap-AB, for at most 64 rows and weights that are dequantized: y = x @ weight.T
// [+ bias] [+ residual].
//
// Launch and macros: see cuda/swap_ab_linear.cuh, and TL_BIAS, TL_RESIDUAL (0 or 1), TL_FLOAT_OUT (1: y is float32),
// TL_ACTIVATION (cuda/activation.cuh; of the result and its bias), those of cuda/peer_rows.cuh.
#include "cuda/activation.cuh"
#include "cuda/peer_rows.cuh"
#include "cuda/swap_ab_linear.cuh"

namespace tl {

// y may alias residual: every element is read and written by the same thread.
struct SwapAbLinearOp {
  static constexpr int kParts = 1, kRun = kTileColumns, kHalfRun = 8;
  PeerRows y;
  BlockNumbers numbers;
  const float* bias;
  const u16* residual;

  __device__ __forceinline__ static int weight_row(int first, int column) { return first + column; }
  // Finishes the sums of features `feature` and `feature` + 8, counted from `column`, for rows `row` and `row` + 1 of
  // every eight. All of the residual is loaded before anything is stored.
  template <int kCount>
  __device__ __forceinline__ void finish(float (&sums)[kCount][4], int row, int rows, int column, int feature) const {
    const int columns = min_of(TL_OUT, y.columns());
#pragma unroll
    for (int i = 0; i < kCount * 4; ++i) {
      const int r = row + i / 4 * 8 + i % 2, at = column + i % 4 / 2 * 8 + feature;
      float& sum = sums[i / 4][i % 4];
      if (TL_BIAS && at < TL_OUT) sum += bias[at];
      sum = activate<TL_ACTIVATION>(sum);
      if (TL_RESIDUAL && r < rows && at < TL_OUT) sum += unpack1(__ldcg(residual + static_cast<u64>(r) * TL_OUT + at));
    }
#pragma unroll
    for (int i = 0; i < kCount * 4; ++i) {
      const int r = row + i / 4 * 8 + i % 2, at = column + i % 4 / 2 * 8 + feature;
      if (r >= rows || at >= columns) continue;
      if constexpr (TL_FLOAT_OUT) {
        y.row<float>(r)[at] = sums[i / 4][i % 4];
      } else {
        y.row<u16>(r)[at] = pack1(sums[i / 4][i % 4]);
      }
    }
  }
};

}  // namespace tl

extern "C" __global__ void TL_TILED_CLUSTER __launch_bounds__(tl::kSwapAbThreads, 1)
    linear_swap_ab(const __grid_constant__ tl::TensorMap x, const __grid_constant__ tl::TensorMap weight, void* y,
                   const void* weight_scale, const void* weight_offset, const float* bias, const tl::u16* residual,
                   const tl::RankTable* ranks, int rows) {
  const tl::SwapAbLinearOp op{{y, ranks}, {weight_scale, weight_offset}, bias, residual};
  tl::swap_ab_linear(x, weight, rows, op);
}
