// The product of qkv_tiled.cuh by swap-AB, for at most 64 new tokens and weights that are dequantized: x @ weight.T
// [+ bias], RoPE, and the write into the paged cache.
//
// Launch and macros: see cuda/swap_ab_linear.cuh and paged_attention/heads.cuh, and TL_BIAS (0 or 1).
#include "cuda/swap_ab_linear.cuh"
#include "paged_attention/heads.cuh"

namespace tl {

// A tile is chunks of heads, of which a warp has eight elements and the eight that they are rotated with.
struct SwapAbQkvOp {
  static constexpr int kChunk = gcd_of(kTileColumns, gcd_of(TL_HEAD_DIM, TL_ROTARY_DIM));
  static constexpr int kParts = 1, kRun = kChunk / 2, kHalfRun = kRun;
  static_assert(TL_OUT == (TL_HEADS + 2 * TL_KV_HEADS) * TL_HEAD_DIM);
  using Chunk = HeadChunk<kRun>;
  HeadTargets targets;
  BlockNumbers numbers;
  const float* cos;  // [tokens, rotary_dim / 2]
  const float* sin;
  const float* bias;

  __device__ __forceinline__ static int weight_row(int first, int column) {
    const Chunk chunk((first + column) / kChunk);
    const int within = column % kChunk;
    return chunk.feature(within < kRun ? chunk.first + within : chunk.second + within - kRun);
  }
  // Finishes both elements of pair `pair` of a warp's eight, for tokens `row` and `row` + 1 of every eight. Operands of
  // some tokens are loaded together, so that a thread waits once for them.
  template <int kCount>
  __device__ __forceinline__ void finish(const float (&sums)[kCount][4], int row, int rows, int column,
                                         int pair) const {
    if (column >= TL_OUT) return;
    const Chunk chunk(column / kChunk);
    const int within = column % kChunk / 2 + pair, first = chunk.first + within, second = chunk.second + within;
    const float more = TL_BIAS ? bias[chunk.feature(first)] : 0.0f,
                more2 = TL_BIAS ? bias[chunk.feature(second)] : 0.0f;
    constexpr int kTogether = min_of(kCount * 2, 8);
#pragma unroll
    for (int start = 0; start < kCount * 2; start += kTogether) {
      int tokens[kTogether], slots[kTogether];
      float2 turns[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        tokens[i] = row + (start + i) / 2 * 8 + i % 2;
        const int token = min_of(tokens[i], rows - 1), at = token * (TL_ROTARY_DIM / 2) + first;
        slots[i] = targets.slots[token];
        turns[i] = chunk.turns ? make_float2(cos[at], sin[at]) : make_float2(1.0f, 0.0f);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (tokens[i] >= rows) continue;
        const float (&sum)[4] = sums[(start + i) / 2];
        const Rotated both(sum[i % 2] + more, sum[2 + i % 2] + more2, turns[i].x, turns[i].y);
        const HeadTarget target = targets.of(chunk.head, tokens[i], slots[i]);
        target.put(first, both.low);
        target.put(second, both.high);
      }
    }
  }
};

}  // namespace tl

extern "C" __global__ void TL_TILED_CLUSTER __launch_bounds__(tl::kSwapAbThreads, 1)
    qkv_linear_swap_ab(const __grid_constant__ tl::TensorMap x, const __grid_constant__ tl::TensorMap weight,
                       tl::u16* q, void* key_cache, void* value_cache, const void* weight_scale,
                       const void* weight_offset, const float* bias, const float* cos, const float* sin,
                       const int* slots, int rows, float key_factor, float value_factor) {
  const tl::HeadTargets targets{q, key_cache, value_cache, slots, key_factor, value_factor};
  tl::swap_ab_linear(x, weight, rows, tl::SwapAbQkvOp{targets, {weight_scale, weight_offset}, cos, sin, bias});
}
