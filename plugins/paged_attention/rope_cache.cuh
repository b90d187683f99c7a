// From the result of a QKV product of any number of tokens: optional RMS norm of each query and key head, RoPE
// as in heads.cuh, queries packed for attention, keys and values into their slots of the paged cache. (Where it can be
// done in the product's epilogue, qkv.cuh and qkv_tiled.cuh do it; for tokens that decode, decode.cuh does.)
//
// Bytes: 4 * qkv_features a token. FLOPs: a few a byte. Floor: bytes / bandwidth (2048 tokens of 6144 features: 50 MB,
// 11.8 us at the 4.26 TB/s of a copy). A warp does a head of a token; a lane holds both of a pair.
// Launch: grid = tokens, of which the first is `first_token` of the step; 32 * TL_WARPS threads. Macros: those of
// turned_heads.cuh, TL_WARPS, TL_STORED (1: keys, then values, go to `stored`, too, as rows of 16 bits).
#include "paged_attention/turned_heads.cuh"

namespace tl {

constexpr int kAllHeads = TL_HEADS + 2 * TL_KV_HEADS;
constexpr int kBatch = min_of(ceil_div(kAllHeads, TL_WARPS), 6);  // heads that a warp has under way

}  // namespace tl

extern "C" __global__ void __launch_bounds__(32 * TL_WARPS)
    rope_cache(tl::u16* q, void* key_cache, void* value_cache, tl::u16* stored, const tl::u16* qkv, const float* cos,
               const float* sin, const int* slots, const float* query_norm, const float* key_norm, int first_token,
               float epsilon, float key_factor, float value_factor) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  const int token = first_token + blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, slot = slots[token];
  HeadAngles angles;
  angles.load(cos, sin, token, lane);
#pragma unroll 1
  for (int first = warp; first < kAllHeads; first += kBatch * TL_WARPS) {
    HeadWords words[kBatch];
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int head = first + n * TL_WARPS;
      if (head < kAllHeads) words[n].load(qkv + (static_cast<u64>(token) * kAllHeads + head) * TL_HEAD_DIM, lane);
    }
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int head = first + n * TL_WARPS;
      if (head >= kAllHeads) break;
      const bool is_query = head < TL_HEADS, is_value = head >= TL_HEADS + TL_KV_HEADS;
      HeadNorm norm;
      if (TL_NORM && !is_value) norm.load(is_query ? query_norm : key_norm, lane);
      const TurnedHead turned(words[n], is_value, norm, epsilon, angles, lane);
      if (is_query) {
        u32* target = reinterpret_cast<u32*>(q + (static_cast<u64>(token) * TL_HEADS + head) * TL_HEAD_DIM);
        turned.store([&](int d, float2 two) { target[d / 2] = pack_query(two.x, two.y); }, lane);
      } else {
        const int kv_head = (head - TL_HEADS) % TL_KV_HEADS;
        const u64 row = cache_row<TL_PAGE, TL_KV_HEADS>(slot, kv_head);
        void* cache = is_value ? value_cache : key_cache;
        const float factor = is_value ? value_factor : key_factor;
        const u64 shown = static_cast<u64>(token) * 2 * TL_KV_HEADS + (head - TL_HEADS);
        const auto put = [&](int d, float2 two) {
          put_pair_in_cache(cache, CacheLayout<TL_HEAD_DIM>::place(row, d), two, factor);
          if (TL_STORED) reinterpret_cast<u32*>(stored + shown * TL_HEAD_DIM)[d / 2] = pack2(two.x, two.y);
        };
        turned.store(put, lane);
      }
    }
  }
}
