// What the prefill attention kernels share: their arguments, and which query rows a block takes.
#pragma once

#include "paged_attention/output.cuh"
#include "paged_attention/score_scale.cuh"
#include "paged_attention/sections.cuh"
#include "paged_attention/seen_keys.cuh"

namespace tl {

struct PrefillArguments {
  void* output;  // see output.cuh
  const u16* query;
  const void* key_cache;  // see cache.cuh
  const void* value_cache;
  const int* cu_seqlens;  // [num_seqs + 1]
  const int* past_lens;
  const int* block_tables;  // [num_seqs, max_blocks]
  const float* sinks;       // [heads], if TL_SINKS is 1
  float y_factor;
  int num_seqs, max_blocks, window;
  float value_scale;
  ScoreScale scale;
};

// The query rows of a block: up to kTokens consecutive tokens of a sequence times the heads of a section. Row r is
// token r / kGroup, head r % kGroup. A sequence is cut into blocks from its end, so that its first block sees the most
// keys.
template <int kTokens>
struct Rows {
  int seq = -1, first, count;  // `count` new tokens from packed token `first` on; seq -1: none
  int position;                // position of token `first` in its sequence

  Rows() = default;
  // Block `block` of sequence s.
  __device__ __forceinline__ Rows(const PrefillArguments& a, int s, int block) : seq(s) {
    const int begin = a.cu_seqlens[s], length = a.cu_seqlens[s + 1] - begin;
    const int token = (ceil_div(length, kTokens) - 1 - block) * kTokens;
    first = begin + token;
    count = min_of(kTokens, length - token);
    position = a.past_lens[s] + token;
  }
  // Finds the index-th block of all sequences.
  __device__ __forceinline__ static Rows find(const PrefillArguments& a, int index) {
    for (int s = 0; s < a.num_seqs; ++s) {
      const int blocks = ceil_div(a.cu_seqlens[s + 1] - a.cu_seqlens[s], kTokens);
      if (index < blocks) return Rows(a, s, index);
      index -= blocks;
    }
    return Rows();
  }
  __device__ __forceinline__ int keys() const { return position + count; }  // up to the last query's own key
  // The position of row r; rows past the last token have its position.
  __device__ __forceinline__ int position_of(int r) const { return position + min_of(r / kGroup, count - 1); }
  // The first key of the first row's window, rounded down to a multiple of kStep or of a cache block.
  template <int kStep>
  __device__ __forceinline__ int first_key(int window) const {
    constexpr int kMultiple = min_of(kStep, TL_PAGE);
    return window_start(position, window) / kMultiple * kMultiple;
  }
  // Whether a row must not see some of the keys key .. key + kStep - 1.
  template <int kStep>
  __device__ __forceinline__ bool hides(int key, int window) const {
    return key + kStep - 1 > position || key < first_seen(position + count - 1, window);
  }
};

}  // namespace tl
