// GroupedGatedLinear for many rows on sm_90a, sorted by expert: y = activation(g) * u with g, u = x @ w[0].T [+ b[0]],
// w[1].T [+ b[1]], where w and b belong to the row's expert. With TL_SELF_GATED, y has activation(g) * g and, behind
// these features, activation(u) * u.
//
// Bytes: 4*I*K for each chosen expert, 2*(K + I) per row. FLOPs: 4*I*K per row. Floor: bytes / bandwidth up to about
// 180 rows per expert (128 experts of I = 768, K = 2048: 805 MB, 180 us at 4.47 TB/s), FLOPs / rate above. Launch and
// macros: see cuda/tiled_linear.cuh and cuda/chosen_experts.cuh; TL_ACTIVATION as in cuda/activation.cuh, TL_BIAS and
// TL_SELF_GATED (0 or 1).
#define TL_Y_TYPE 0
#define TL_ADDED 0
#include "cuda/grouped_tiles.cuh"
#include "gated_linear/tiled_op.cuh"

namespace tl {

struct BiasedGatedOp : TiledGatedOp {
  const float* bias;  // [2, TL_OUT], of the tile's expert

  template <int kBoth>
  __device__ __forceinline__ void finish(float (&sums)[kBoth][4], int row, int column, int rows, int columns,
                                         float2 row_scales) const {
    if constexpr (TL_BIAS != 0) {
      static_assert(!kScaledRows, "scales would be applied to the bias");
      constexpr int kCount = kBoth / 2;
#pragma unroll
      for (int f = 0; f < kBoth; ++f) {
        const float* from = bias + f / kCount * TL_OUT + column;
        float2 both = make_float2(0.0f, 0.0f);
        if (column + f % kCount * 8 < TL_OUT) {
          both = reinterpret_cast<const float2*>(from)[f % kCount * 4 + threadIdx.x % 4];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[f][i] += i % 2 == 0 ? both.x : both.y;
      }
    }
    if constexpr (TL_SELF_GATED != 0) {
      store_each(sums, row, column, rows, columns);
    } else {
      TiledGatedOp::finish(sums, row, column, rows, columns, row_scales);
    }
  }
  // Stores the features of both halves of a matrix, each gated by itself.
  template <int kBoth>
  __device__ __forceinline__ void store_each(const float (&sums)[kBoth][4], int row, int column, int rows,
                                             int columns) const {
    static_assert(!kScaledRows, "rows have no scales");
    constexpr int kCount = kBoth / 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2, part = i % 2, r = row + half * 8, present = r < rows ? (columns - column) / 8 : 0;
      u16* to = static_cast<u16*>(y) + (static_cast<u64>(r) * 2 + part) * TL_OUT + column;
      u32 pieces[kCount];
#pragma unroll
      for (int f = 0; f < kCount; ++f) {
        const float a = sums[part * kCount + f][half * 2], b = sums[part * kCount + f][half * 2 + 1];
        pieces[f] = pack2(gated<TL_ACTIVATION>(a, a), gated<TL_ACTIVATION>(b, b));
      }
      RowPart<kCount>{to, present, static_cast<int>(threadIdx.x) % 32}.store(pieces);
    }
  }
};

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kTiledThreads, 1)
    grouped_gated_linear_tiled(const __grid_constant__ tl::TensorMap x, const __grid_constant__ tl::TensorMap weight,
                               void* y, const void* weight_scale, const void* weight_offset, const float* bias,
                               const int* groups) {
  const tl::ProductScales scales{static_cast<const float*>(weight_scale), nullptr, 0.0f};
  const tl::BiasedGatedOp op{{y, nullptr, scales, {weight_scale, weight_offset}, 0.0f}, bias};
  tl::tiled_linear(x, weight, 0, tl::Grouped<tl::BiasedGatedOp>(op, {groups}));
}
