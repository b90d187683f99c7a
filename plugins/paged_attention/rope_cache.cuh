// Processes the result of a QKV product of any number of tokens: optional RMS norm of each query and key head, RoPE as
// in heads.cuh, or the norm after it, optional RMS norm of each value head, queries packed for attention, keys and
// values stored in their slots of the paged cache. Rows may have queries alone. (Where the product's epilogue can do
// this, qkv.cuh and qkv_tiled.cuh do it.)
//
// Bytes: 4 * qkv_features per token. FLOPs: a few per byte. Floor: bytes / bandwidth (2048 tokens of 6144 features: 50
// MB, 11.8 us at the 4.26 TB/s of a copy). A warp takes a head of a token; a lane holds both elements of a pair.
// Launch: grid = tokens, 32 * TL_WARPS threads. Macros: those of heads.cuh, TL_WARPS, TL_NORM (0: no norm, 1: before
// RoPE, 2: after it, which does not change the sum of squares), TL_VALUE_NORM (0 or 1), TL_APPENDS (0: rows have
// queries alone), TL_STORED (1: keys, then values, are also stored in `stored`, in 16 bits).
#include "cuda/warp_reduce.cuh"
#include "paged_attention/heads.cuh"

namespace tl {

constexpr int kQuads = TL_HEAD_DIM / 4, kRotated = TL_ROTARY_DIM / 4;  // groups of four elements of a head; groups
                                                                       // that are rotated
constexpr int kAllHeads = TL_HEADS + (TL_APPENDS ? 2 * TL_KV_HEADS : 0), kPairs = ceil_div(kQuads, 32);
constexpr int kBatch = min_of(ceil_div(kAllHeads, TL_WARPS), 6);  // heads that a warp has in flight
static_assert(TL_HEAD_DIM % 4 == 0);

// Two neighbouring elements of a head and the two that they are rotated with, or four neighbours that are not rotated.
struct Quad {
  float2 low, high;
};

// The place of a quad in a head, in words of two elements.
__device__ __forceinline__ int low_word(int quad) { return quad < kRotated ? quad : 2 * quad; }
__device__ __forceinline__ int high_word(int quad) { return quad < kRotated ? quad + kRotated : 2 * quad + 1; }

__device__ __forceinline__ float2 times(float2 two, const float* weight) {
  return make_float2(two.x * weight[0], two.y * weight[1]);
}

// Divides a head by its RMS, and if `weighs` multiplies it by `weight`.
__device__ __forceinline__ void normalise(Quad (&quads)[kPairs], const float* weight, bool weighs, float epsilon,
                                          int lane) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    sum += quads[i].low.x * quads[i].low.x + quads[i].low.y * quads[i].low.y;
    sum += quads[i].high.x * quads[i].high.x + quads[i].high.y * quads[i].high.y;
  }
  const float inverse = rsqrtf(warp_sum(sum) / TL_HEAD_DIM + epsilon);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int quad = lane + i * 32;
    if (quad >= kQuads) break;
    const int low = low_word(quad) * 2, high = high_word(quad) * 2;
    const float of_low[2] = {weighs ? inverse * weight[low] : inverse, weighs ? inverse * weight[low + 1] : inverse};
    const float of_high[2] = {weighs ? inverse * weight[high] : inverse, weighs ? inverse * weight[high + 1] : inverse};
    quads[i].low = times(quads[i].low, of_low);
    quads[i].high = times(quads[i].high, of_high);
  }
}

__device__ __forceinline__ void load(Quad (&quads)[kPairs], const u16* from, int lane) {
  const u32* words = reinterpret_cast<const u32*>(from);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int quad = lane + i * 32;
    if (quad < kQuads) quads[i] = {unpack2(words[low_word(quad)]), unpack2(words[high_word(quad)])};
  }
}

// Calls put(d, two) with elements d and d + 1 of the head, which is rotated unless it is a value. `weight`: of a norm.
template <class Put>
__device__ __forceinline__ void store(const Quad (&quads)[kPairs], const Put& put, const float2 (&c)[kPairs],
                                      const float2 (&s)[kPairs], bool rotate, const float* weight, int lane) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int quad = lane + i * 32;
    if (quad >= kQuads) break;
    float2 a = quads[i].low, b = quads[i].high;
    if (rotate && quad < kRotated) {
      const Rotated x(a.x, b.x, c[i].x, s[i].x), y(a.y, b.y, c[i].y, s[i].y);
      a = make_float2(x.low, y.low);
      b = make_float2(x.high, y.high);
    }
    const int low = low_word(quad) * 2, high = high_word(quad) * 2;
    put(low, TL_NORM == 2 && rotate ? times(a, weight + low) : a);
    put(high, TL_NORM == 2 && rotate ? times(b, weight + high) : b);
  }
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(32 * TL_WARPS)
    rope_cache(tl::u16* q, void* key_cache, void* value_cache, tl::u16* stored, const tl::u16* qkv, const float* cos,
               const float* sin, const int* slots, const float* query_norm, const float* key_norm,
               const float* value_norm, float epsilon, float key_factor, float value_factor) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  const int token = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, slot = slots[token];
  float2 c[kPairs], s[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int quad = lane + i * 32;
    if (quad >= kRotated) break;
    c[i] = reinterpret_cast<const float2*>(cos + token * (TL_ROTARY_DIM / 2))[quad];
    s[i] = reinterpret_cast<const float2*>(sin + token * (TL_ROTARY_DIM / 2))[quad];
  }
#pragma unroll 1
  for (int first = warp; first < kAllHeads; first += kBatch * TL_WARPS) {
    Quad quads[kBatch][kPairs] = {};
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int head = first + n * TL_WARPS;
      if (head < kAllHeads) load(quads[n], qkv + (static_cast<u64>(token) * kAllHeads + head) * TL_HEAD_DIM, lane);
    }
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int head = first + n * TL_WARPS;
      if (head >= kAllHeads) break;
      const bool is_query = head < TL_HEADS, is_value = head >= TL_HEADS + TL_KV_HEADS;
      const float* weight = is_query ? query_norm : key_norm;
      if (TL_NORM && !is_value) normalise(quads[n], weight, TL_NORM == 1, epsilon, lane);
      if (TL_VALUE_NORM && is_value) normalise(quads[n], value_norm, true, epsilon, lane);
      if (is_query) {
        u32* target = reinterpret_cast<u32*>(q + (static_cast<u64>(token) * TL_HEADS + head) * TL_HEAD_DIM);
        const auto put = [&](int d, float2 two) { target[d / 2] = pack_query(two.x, two.y); };
        store(quads[n], put, c, s, true, weight, lane);
      } else {
        const int kv_head = (head - TL_HEADS) % TL_KV_HEADS;
        const int row = block_row<TL_PAGE>(slot, kv_head);
        void* block = cache_block(is_value ? value_cache : key_cache, slot / TL_PAGE);
        const float factor = is_value ? value_factor : key_factor;
        const u64 shown = static_cast<u64>(token) * 2 * TL_KV_HEADS + (head - TL_HEADS);
        const auto put = [&](int d, float2 two) {
          if (kKeyType == kValueType || is_value) {
            put_pair_in_cache<kValueType>(block, ValueLayout::place(row, d), two, factor);
          } else {
            put_pair_in_cache<kKeyType>(block, KeyLayout::place(row, d), two, factor);
          }
          if (TL_STORED) reinterpret_cast<u32*>(stored + shown * TL_HEAD_DIM)[d / 2] = pack2(two.x, two.y);
        };
        store(quads[n], put, c, s, !is_value, weight, lane);
      }
    }
  }
}
