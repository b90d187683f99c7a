// GroupedGatedLinear for at most 16 rows: y[m, s] = share * activation(g) * u with g, u = [rms_norm](x[m]) @ w[0].T [+
// b[0]], w[1].T [+ b[1]]. Here w and b belong to the expert that row m has chosen in slot s, and share is its share.
// With TL_SCALES_INPUTS, not the result but both products are multiplied by the share.
//
// The weights of every chosen expert are read once and multiplied by all rows; the results of rows that did not choose
// the expert are dropped. Bytes: 4*I*K for each chosen expert, half for 8-bit weights. Floor: bytes / bandwidth (8
// experts of I = 768, K = 2048: 50 MB, 11.3 us at 4.47 TB/s). The previous kernel writes the list of experts, so
// weights cannot be prefetched before its end. Launch and macros: see linear/cuda.cuh and cuda/chosen_experts.cuh;
// TL_OUT is the number of gated features I, TL_BIAS and TL_SCALES_INPUTS are 0 or 1, TL_ACTIVATION is as in
// cuda/activation.cuh.
#include "cuda/activation.cuh"
#include "cuda/chosen_experts.cuh"
#include "cuda/gemv_linear.cuh"

namespace tl {

// A tile is eight gate rows and the eight up rows of the same features. weight is [experts, 2, TL_OUT, in]. begin() and
// store() count tiles among those of the chosen experts, first_row() among those of all experts.
struct GroupedGatedOp {
  static constexpr int kTiles = TL_OUT / 8;
  static_assert(TL_OUT % 8 == 0, "out_features must be a multiple of 8");
  const void* weight;
  BlockNumbers numbers;
  const float* scale;  // [experts, 2, TL_OUT]
  const float* bias;   // [experts, 2, TL_OUT]
  ChosenExperts chosen;
  const float* shares;  // [rows, kTopK]
  u16* y;               // [rows, kTopK, TL_OUT]

  __device__ __forceinline__ u64 first_row(int tile, int half) const {
    return static_cast<u64>(tile / kTiles * 2 + half) * TL_OUT + tile % kTiles * 8;
  }
  __device__ __forceinline__ int slot(int tile, int m) const { return m * kTopK + chosen[tile / kTiles].slots[m]; }
  // The tile's number among the tiles of all experts.
  __device__ __forceinline__ u64 first_number(int tile) const {
    return first_row(chosen[tile / kTiles].expert * kTiles + tile % kTiles, 0);
  }
  __device__ __forceinline__ Begun begin(int tile, int f, int m) const {
    Begun begun{shares[slot(tile, m)], 0.0f, 1.0f, 1.0f};
    if constexpr (kScaledRows) {
      const float* of_tile = scale + first_number(tile) + f;
      begun.scale_a = of_tile[0];
      begun.scale_b = of_tile[TL_OUT];
    }
    return begun;
  }
  __device__ __forceinline__ void store(int tile, int f, int m, float gate, float up, Begun begun) const {
    const float before = TL_SCALES_INPUTS != 0 ? begun.x : 1.0f, behind = TL_SCALES_INPUTS != 0 ? 1.0f : begun.x;
    gate *= before;
    up *= before;
    if constexpr (TL_BIAS != 0) {
      const float* of_tile = bias + first_number(tile) + f;
      gate += of_tile[0];
      up += of_tile[TL_OUT];
    }
    y[static_cast<u64>(slot(tile, m)) * TL_OUT + tile % kTiles * 8 + f] =
        pack1(gated<TL_ACTIVATION>(gate, up) * behind);
  }
};

template <>
struct WalkOf<GroupedGatedOp> {
  using Op = GroupedGatedOp;
  static constexpr bool kWaits = true, kListed = false, kOwn = false, kOnePart = true;
  __device__ __forceinline__ static int tiles(const Op& op) { return op.chosen.count() * Op::kTiles; }
  __device__ __forceinline__ static constexpr int parts(const Op&) { return 1; }
  __device__ __forceinline__ static u64 first_row(const Op& op, int, int tile, int half) {
    return op.first_row(op.chosen[tile / Op::kTiles].expert * Op::kTiles + tile % Op::kTiles, half);
  }
  __device__ __forceinline__ static constexpr int num_rows(const Op&, int, int) { return 8; }
  __device__ __forceinline__ static u32 present(const Op&, int, int, int rows) { return (1u << rows) - 1; }
  __device__ __forceinline__ static int x_row(const Op&, int, int row) { return row; }
  __device__ __forceinline__ static bool stores(const Op& op, int tile, int row, int) {
    return op.chosen[tile / Op::kTiles].rows >> row & 1;
  }
};

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kFewRowsThreads, 1)
    grouped_gated_linear(tl::u16* y, const tl::u16* x, const void* weight, const void* weight_scale,
                         const void* weight_offset, const float* bias, const float* norm_weight, const int* chosen,
                         const float* shares, int rows, float epsilon, float x_scale) {
  const float* scale = static_cast<const float*>(weight_scale);
  tl::few_rows_linear<TL_IN, TL_NORM>(
      {x, x_scale}, norm_weight, epsilon, rows,
      tl::GroupedGatedOp{weight, {weight_scale, weight_offset}, scale, bias, {chosen}, shares, y});
}
