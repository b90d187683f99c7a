// Queries, keys and values of at most 16 new tokens: [rms_norm](x) @ weight.T [+ bias], RoPE, and the write into the
// paged cache, in one kernel.
//
// Bytes: the weights, once. FLOPs: 2*M*N*K. Floor: bytes / bandwidth (Llama-3.1-8B: 50.3 MB, 11.3 us at 4.47 TB/s).
// Launch and macros as in linear/cuda.cuh, but TL_OUT, TL_RESIDUAL and TL_FLOAT_OUT; and TL_HEADS, TL_KV_HEADS,
// TL_HEAD_DIM, TL_PAGE (tokens per block of the cache), TL_ROTARY_DIM (elements of a head that RoPE turns; 0: no RoPE),
// TL_CACHE_E4M3 (see cache.cuh).
#include "cuda/few_rows_linear.cuh"
#include "paged_attention/cache.cuh"

namespace tl {

// A tile is eight features of a head and the eight they are rotated with, so that one thread ends up with both; behind
// the rotated features, it is sixteen neighbours.
// weight is [(heads + 2 * kv_heads) * dim, in]: query, key, value heads.
struct QkvOp {
  static constexpr int kHalf = TL_ROTARY_DIM / 2, kTurned = TL_ROTARY_DIM / 16, kTilesPerHead = TL_HEAD_DIM / 16;
  static constexpr int kTiles = (TL_HEADS + 2 * TL_KV_HEADS) * kTilesPerHead;
  static_assert(TL_HEAD_DIM % 16 == 0, "head_dim must be a multiple of 16");
  static_assert(TL_ROTARY_DIM % 16 == 0 && TL_ROTARY_DIM <= TL_HEAD_DIM, "tiles are rotated as a whole");
  const void* weight;
  BlockNumbers numbers;
  const float* scale;  // of each feature
  const float* bias;
  u16* q;          // [tokens, heads, dim]
  void* key_cache;  // see cache.cuh
  void* value_cache;
  const float* cos;  // [tokens, rotary_dim / 2]
  const float* sin;
  const int* slots;  // [tokens]: block * page + offset
  float key_factor, value_factor;

  // The first feature of a tile in its head, and how far behind it the other eight are.
  __device__ __forceinline__ static int first_of(int tile) {
    const int index = tile % kTilesPerHead;
    return kTurned == kTilesPerHead || index < kTurned ? index * 8 : index * 16;
  }
  __device__ __forceinline__ static int distance_of(int tile) {
    return kTurned == kTilesPerHead || tile % kTilesPerHead < kTurned ? kHalf : 8;
  }
  __device__ __forceinline__ u64 first_row(int tile, int half) const {
    return tile / kTilesPerHead * TL_HEAD_DIM + first_of(tile) + half * distance_of(tile);
  }
  __device__ __forceinline__ int num_rows(int tile, int) const { return tile < kTiles ? 8 : 0; }
  __device__ __forceinline__ Begun begin(int tile, int f, int m) const {
    Begun begun{1.0f, 0.0f, 1.0f, 1.0f};
    if (kScaledRows) {
      const int feature = tile / kTilesPerHead * TL_HEAD_DIM + first_of(tile) + f;
      begun.scale_a = scale[feature];
      begun.scale_b = scale[feature + distance_of(tile)];
    }
    const bool is_value = tile / kTilesPerHead >= TL_HEADS + TL_KV_HEADS;
    if (is_value || (kTurned < kTilesPerHead && tile % kTilesPerHead >= kTurned)) return begun;
    const int at = m * kHalf + first_of(tile) + f;
    begun.x = cos[at];
    begun.y = sin[at];
    return begun;
  }
  __device__ __forceinline__ void store(int tile, int f, int m, float a, float b, Begun turn) const {
    const int head = tile / kTilesPerHead, d = first_of(tile) + f, other = d + distance_of(tile);
    if (TL_BIAS) {
      a += bias[head * TL_HEAD_DIM + d];
      b += bias[head * TL_HEAD_DIM + other];
    }
    const float first = a * turn.x - b * turn.y, second = b * turn.x + a * turn.y;
    if (head < TL_HEADS) {
      u16* target = q + (static_cast<u64>(m) * TL_HEADS + head) * TL_HEAD_DIM + d;
      const u32 both = pack_query(first, second);
      target[0] = static_cast<u16>(both);
      target[other - d] = static_cast<u16>(both >> 16);
      return;
    }
    const int slot = slots[m], kv_head = (head - TL_HEADS) % TL_KV_HEADS;
    const u64 row = (static_cast<u64>(slot / TL_PAGE) * TL_KV_HEADS + kv_head) * TL_PAGE + slot % TL_PAGE;
    const bool is_key = head < TL_HEADS + TL_KV_HEADS;
    void* cache = is_key ? key_cache : value_cache;
    const float factor = is_key ? key_factor : value_factor;
    using Layout = CacheLayout<TL_HEAD_DIM>;
    put_in_cache(cache, Layout::place(row, d), first, factor);
    put_in_cache(cache, Layout::place(row, other), second, factor);
  }
};

}  // namespace tl

extern "C" __global__ void TL_FEW_ROWS_CLUSTER __launch_bounds__(tl::kFewRowsThreads, 1)
    qkv_linear(tl::u16* q, void* key_cache, void* value_cache, const tl::u16* x, const void* weight,
               const void* weight_scale, const void* weight_offset, const float* norm_weight, const float* bias, const float* cos,
               const float* sin, const int* slots, int rows, float epsilon, float x_scale,
               float key_factor, float value_factor) {
  tl::few_rows_linear<TL_IN, TL_NORM>(
      {x, x_scale}, norm_weight, epsilon, rows,
      tl::QkvOp{weight, {weight_scale, weight_offset}, static_cast<const float*>(weight_scale), bias, q, key_cache, value_cache, cos, sin, slots, key_factor, value_factor});
}
