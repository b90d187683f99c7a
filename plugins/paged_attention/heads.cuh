// Rows of a QKV product as heads: which elements RoPE rotates together, and where the heads of new tokens are stored.
//
// A row is query, key and value heads of TL_HEAD_DIM elements. RoPE (rotate-half) rotates the first TL_ROTARY_DIM
// elements of queries and keys in pairs (i, i + TL_ROTARY_DIM / 2); the others stay. Macros: these, TL_HEADS,
// TL_KV_HEADS, TL_PAGE (tokens per block of the cache), and those of cache.cuh.
#pragma once

#include "paged_attention/cache.cuh"

namespace tl {

static_assert(TL_ROTARY_DIM % 4 == 0 && TL_ROTARY_DIM <= TL_HEAD_DIM);

// Rotates pairs (low, high) as RoPE does.
struct Rotated {
  float low, high;

  __device__ __forceinline__ Rotated(float a, float b, float cos, float sin)
      : low(TL_ORDERED ? fmaf(a, cos, -__fmul_rn(b, sin)) : a * cos - b * sin),
        high(TL_ORDERED ? fmaf(b, cos, __fmul_rn(a, sin)) : b * cos + a * sin) {}
};

// Chunk `index` of a row: kRun elements of a head and the kRun elements that they are rotated with. Chunks of elements
// that RoPE does not rotate are 2 * kRun neighbours.
template <int kRun>
struct HeadChunk {
  static constexpr int kPerHead = TL_HEAD_DIM / (2 * kRun), kRotary = TL_ROTARY_DIM / (2 * kRun);
  static_assert(TL_HEAD_DIM % (2 * kRun) == 0 && TL_ROTARY_DIM % (2 * kRun) == 0, "chunks are rotated as a whole");
  int head, first, second;  // where in the head each of the two runs begins
  bool turns;

  __device__ __forceinline__ explicit HeadChunk(int index) {
    const int within = index % kPerHead;
    const bool is_rotary = kRotary == kPerHead || within < kRotary;
    head = index / kPerHead;
    first = is_rotary ? within * kRun : within * 2 * kRun;
    second = first + (is_rotary ? TL_ROTARY_DIM / 2 : kRun);
    turns = is_rotary && head < TL_HEADS + TL_KV_HEADS;
  }
  // The feature of the row that is element `element` of the head.
  __device__ __forceinline__ int feature(int element) const { return head * TL_HEAD_DIM + element; }
};

using KeyLayout = CacheLayout<TL_HEAD_DIM, kKeyItemBytes>;
using ValueLayout = CacheLayout<TL_HEAD_DIM, kValueItemBytes>;

// The destination of a token's head; `to` is where its elements begin. Queries of the type of keys are laid out like a
// group of one token, so that the same stores serve both.
struct HeadTarget {
  void* to;
  int token, tokens;  // index in its group, and tokens of the group
  float factor;
  bool is_wide;  // a query in 16 bits, with keys of bytes; or, if only values are bytes, a query or key

  __device__ __forceinline__ void put(int element, float2 two) const {
    if (kByteKeys && is_wide) {
      static_cast<u32*>(to)[element / 2] = pack_query(two.x, two.y);
    } else if (!kByteKeys && kByteValues && is_wide) {
      put_pair_in_cache<kKeyType>(to, KeyLayout::offset(element, token, tokens), two, factor);
    } else {
      put_pair_in_cache<kValueType>(to, ValueLayout::offset(element, token, tokens), two, factor);
    }
  }
  __device__ __forceinline__ void put(int element, float one) const {
    if (kByteKeys && is_wide) {
      static_cast<u16*>(to)[element] = static_cast<u16>(pack_query(one, 0.0f));
    } else if (!kByteKeys && kByteValues && is_wide) {
      put_in_cache<kKeyType>(to, KeyLayout::offset(element, token, tokens), one, factor);
    } else {
      put_in_cache<kValueType>(to, ValueLayout::offset(element, token, tokens), one, factor);
    }
  }
};

// Queries are stored as rows of their own, keys and values in the paged cache.
struct HeadTargets {
  u16* q;           // [tokens, heads, dim]
  void* key_cache;  // see cache.cuh
  void* value_cache;
  const int* slots;  // [tokens]: block * page + offset
  float key_factor, value_factor;

  // The destination of head `head` of token `token`, whose slot is `slot`.
  __device__ __forceinline__ HeadTarget of(int head, int token, int slot) const {
    const bool is_query = head < TL_HEADS, is_key = head < TL_HEADS + TL_KV_HEADS;
    const int row = block_row<TL_PAGE>(slot, (head - TL_HEADS) % TL_KV_HEADS);
    const int place = kByteKeys == kByteValues || !is_key ? ValueLayout::begin(row) * kValueItemBytes
                                                          : KeyLayout::begin(row) * kKeyItemBytes;
    const u64 begin = is_query ? (static_cast<u64>(token) * TL_HEADS + head) * TL_HEAD_DIM * 2
                               : slot / TL_PAGE * static_cast<u64>(TL_BLOCK_BYTES) + place;
    void* base = is_query ? q : is_key ? key_cache : value_cache;
    return {static_cast<char*>(base) + begin, is_query ? 0 : slot % kGroupTokens, is_query ? 1 : kGroupTokens,
            is_key ? key_factor : value_factor, kByteKeys ? is_query : is_key};
  }
};

}  // namespace tl
