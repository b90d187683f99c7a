// Which sequences of a step have a copy of their keys and values in float16, the wide cache, and where it lies.
//
// Attention over a cache of bytes computes in float16; keys of 16 bits beside values of bytes need no copy. For a few
// new tokens it converts the tiles that it loads. A tile of a long prompt is loaded once for each block of queries, so
// widen.cuh converts it before, once. (Llama-3.1-8B, a prompt of 8192 tokens, H200: 15 us of 1010.)
//
// The wide cache has the layout of a cache of 16-bit elements. The blocks of a sequence are consecutive, in the order
// of their tokens; sequences follow one another. Those that no longer fit have no copy, nor have those of fewer than
// TL_WIDE_TOKENS new tokens.
#pragma once

#include "paged_attention/seen_keys.cuh"

namespace tl {

constexpr int kNotWide = -(1 << 30);

struct WideCache {
  u16* keys;
  u16* values;
  int blocks;
};

// The blocks of the cache that the new tokens of a step's sequences see.
struct SeenBlocks {
  const int* cu_seqlens;
  const int* past_lens;
  int window;

  __device__ __forceinline__ int new_tokens(int seq) const { return cu_seqlens[seq + 1] - cu_seqlens[seq]; }
  __device__ __forceinline__ int first(int seq) const { return window_start(past_lens[seq], window) / TL_PAGE; }
  __device__ __forceinline__ int past_last(int seq) const {
    return ceil_div(past_lens[seq] + new_tokens(seq), TL_PAGE);
  }
  // How many blocks are copied, if they fit.
  __device__ __forceinline__ int wide(int seq) const {
    return new_tokens(seq) >= TL_WIDE_TOKENS ? past_last(seq) - first(seq) : 0;
  }
  // The block of the wide cache at which the copy of block 0 would be, or kNotWide. Called by whole warps.
  __device__ __forceinline__ int wide_place(int seq, int wide_blocks, int lane) const {
    const int count = wide(seq);
    if (count == 0) return kNotWide;
    int before = 0;
    for (int s = lane; s < seq; s += 32) before += wide(s);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) before += __shfl_xor_sync(0xffffffffu, before, offset);
    return before + count > wide_blocks ? kNotWide : before - first(seq);
  }
};

}  // namespace tl
