// Queries, keys and values of many new tokens on sm_90a: x @ weight.T [+ bias], RoPE, and the write into the paged
// cache, in one kernel.
//
// Bytes: 2*N*K for the weights, 2*M*(K + N) for the rows; no row of the product is written and read again. FLOPs:
// 2*M*N*K. Floor: as in linear/tiled.cuh (Llama-3.1-8B at M = 64: 50.3 MB, 11.3 us at 4.47 TB/s). Launch and macros as
// in cuda/tiled_linear.cuh and paged_attention/heads.cuh, and TL_BIAS (0 or 1).
#include "cuda/tiled_linear.cuh"
#include "paged_attention/heads.cuh"

namespace tl {

// One of the two rows for which a thread has sums.
struct TokenRow {
  int token, slot;
  float scale;
  bool exists;
};

// Operands loaded for a thread's sums in a pair of fragments: for the two features of each fragment, in both rows.
struct PairOperands {
  float2 scales[2], biases[2], cos[2], sin[2];
};

// A tile is chunks of heads, so that a thread has both elements that RoPE rotates together: in pairs of fragments, the
// second of which is kRun / 8 after the first. Runs are as long as tiles, their slices and heads allow.
struct TiledQkvOp {
  static constexpr int kChunk = gcd_of(gcd_of(kTileColumns, kSlice * 8), gcd_of(TL_HEAD_DIM, TL_ROTARY_DIM));
  static constexpr int kParts = 1, kRun = kChunk / 2, kChunkPairs = kRun / 8;
  static_assert(kRun % 8 == 0, "a run is whole fragments");
  static_assert(TL_OUT == (TL_HEADS + 2 * TL_KV_HEADS) * TL_HEAD_DIM);
  using Chunk = HeadChunk<kRun>;
  HeadTargets targets;
  const float* cos;  // [tokens, rotary_dim / 2]
  const float* sin;
  const float* bias;
  ProductScales scales;
  BlockNumbers numbers;

  __device__ __forceinline__ static int weight_row(int first, int column) {
    const Chunk chunk((first + column) / kChunk);
    const int within = column % kChunk;
    return chunk.feature(within < kRun ? chunk.first + within : chunk.second + within - kRun);
  }
  // Prefetches both halves of every head of which the tile has a part.
  __device__ __forceinline__ void warm(int column) const {
    const int first = column / TL_HEAD_DIM * TL_HEAD_DIM;
    scales.warm<ceil_div(kTileColumns, TL_HEAD_DIM) * TL_HEAD_DIM + TL_HEAD_DIM>(first, TL_OUT - first);
  }
  __device__ __forceinline__ static float2 two(const float* from, int at) {
    return *reinterpret_cast<const float2*>(from + at);
  }
  __device__ __forceinline__ TokenRow token_row(int row, int rows, float scale) const {
    const int token = min_of(row, rows - 1);
    return {token, targets.slots[token], scale, row < rows};
  }
  // `within`: the place of the lane's first element in either run of the chunk.
  __device__ __forceinline__ PairOperands load(const Chunk& chunk, int within, const TokenRow (&tokens)[2]) const {
    const float2 one = make_float2(1.0f, 1.0f), zero = make_float2(0.0f, 0.0f);
    PairOperands loaded{{one, one}, {zero, zero}, {one, one}, {zero, zero}};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int feature = chunk.feature((i == 0 ? chunk.first : chunk.second) + within);
      if (kScaledRows) loaded.scales[i] = two(scales.weight, feature);
      if (TL_BIAS) loaded.biases[i] = two(bias, feature);
      if (!chunk.turns) continue;
      const int at = tokens[i].token * (TL_ROTARY_DIM / 2) + chunk.first + within;
      loaded.cos[i] = two(cos, at);
      loaded.sin[i] = two(sin, at);
    }
    return loaded;
  }
  __device__ __forceinline__ static float finished(float sum, float scale, float row_scale, float more) {
    const float value = kScaledRows ? rounded_product(sum_of_parts(sum), scale * row_scale) : sum;
    return TL_BIAS ? value + more : value;
  }
  // Finishes and stores row `i` of the thread's rows in both fragments of a pair.
  __device__ __forceinline__ static void store(const float (&low)[4], const float (&high)[4],
                                               const PairOperands& loaded, int i, float row_scale, const Chunk& chunk,
                                               int within, const HeadTarget& target) {
    float a[2], b[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const auto of = [e](float2 both) { return e == 0 ? both.x : both.y; };
      const float x = finished(low[i * 2 + e], of(loaded.scales[0]), row_scale, of(loaded.biases[0]));
      const float y = finished(high[i * 2 + e], of(loaded.scales[1]), row_scale, of(loaded.biases[1]));
      const Rotated rotated(x, y, of(loaded.cos[i]), of(loaded.sin[i]));
      a[e] = rotated.low;
      b[e] = rotated.high;
    }
    target.put(chunk.first + within, make_float2(a[0], a[1]));
    target.put(chunk.second + within, make_float2(b[0], b[1]));
  }
  // Handles some pairs of fragments at a time: loads all operands before it stores, so that a thread waits only once
  // for them. The number is smaller if sums take many registers.
  template <int kCount>
  __device__ __forceinline__ void finish(float (&sums)[kCount][4], int row, int column, int rows, int columns,
                                         float2 row_scales) const {
    static_assert(kCount * 8 % kChunk == 0);
    constexpr int kPairs = kCount / 2, kTogether = kFragments <= 16 ? 4 : kFragments <= 24 ? 2 : 1;
    const TokenRow tokens[2] = {token_row(row, rows, row_scales.x), token_row(row + 8, rows, row_scales.y)};
    HeadTarget to[2];  // the destinations of the chunk
    const int present = (columns - column) / 16, lane_element = threadIdx.x % 4 * 2;
#pragma unroll
    for (int first = 0; first < kPairs; first += kTogether) {
      PairOperands loaded[kTogether];
#pragma unroll
      for (int p = first; p < min_of(first + kTogether, kPairs); ++p) {
        const Chunk chunk(column / kChunk + p / kChunkPairs);
        if (p < present) loaded[p - first] = load(chunk, p % kChunkPairs * 8 + lane_element, tokens);
      }
#pragma unroll
      for (int p = first; p < min_of(first + kTogether, kPairs); ++p) {
        if (p >= present) break;
        const Chunk chunk(column / kChunk + p / kChunkPairs);
        const int low = p + p / kChunkPairs * kChunkPairs;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (p % kChunkPairs == 0) to[i] = targets.of(chunk.head, tokens[i].token, tokens[i].slot);
          if (!tokens[i].exists) continue;
          store(sums[low], sums[low + kChunkPairs], loaded[p - first], i, tokens[i].scale, chunk,
                p % kChunkPairs * 8 + lane_element, to[i]);
        }
      }
    }
  }
};

}  // namespace tl

extern "C" __global__ void TL_TILED_CLUSTER __launch_bounds__(tl::kTiledThreads, 1)
    qkv_linear_tiled(const __grid_constant__ tl::TensorMap x, const __grid_constant__ tl::TensorMap weight, tl::u16* q,
                     void* key_cache, void* value_cache, const void* weight_scale, const void* weight_offset,
                     const float* row_scales, const float* bias, const float* cos, const float* sin, const int* slots,
                     float x_scale, int rows, float key_factor, float value_factor) {
  const tl::HeadTargets targets{q, key_cache, value_cache, slots, key_factor, value_factor};
  const tl::ProductScales scales{static_cast<const float*>(weight_scale), row_scales, x_scale};
  tl::tiled_linear(x, weight, rows, tl::TiledQkvOp{targets, cos, sin, bias, scales, {weight_scale, weight_offset}});
}
