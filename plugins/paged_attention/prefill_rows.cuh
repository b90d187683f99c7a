// What the prefill attention kernels share: their arguments, and which query rows a block takes.
#pragma once

#include "cuda/types.cuh"

namespace tl {

struct PrefillArguments {
  u16* output;  // [tokens, heads, dim]
  const u16* query;
  const u16* key_cache;  // [blocks, kv_heads, page, dim]
  const u16* value_cache;
  const int* cu_seqlens;  // [num_seqs + 1]
  const int* past_lens;
  const int* block_tables;  // [num_seqs, max_blocks]
  int num_seqs, max_blocks, window;
  float scale;  // includes log2(e)
};

// The rows of block `index` of a KV head: kTokens consecutive tokens of a sequence times the query heads of the group,
// row r being token r / group, head r % group. Blocks with most keys come first.
template <int kTokens>
struct Rows {
  int seq = -1, first, count;  // count new tokens from packed token `first`; seq -1: none
  int position;                // of the first of them in its sequence

  __device__ __forceinline__ Rows(const PrefillArguments& a, int index) {
    for (int s = 0; s < a.num_seqs; ++s) {
      const int begin = a.cu_seqlens[s], length = a.cu_seqlens[s + 1] - begin, blocks = ceil_div(length, kTokens);
      if (index < blocks) {
        const int token = (blocks - 1 - index) * kTokens;  // the last ones see most keys
        seq = s;
        first = begin + token;
        count = min_of(kTokens, length - token);
        position = a.past_lens[s] + token;
        return;
      }
      index -= blocks;
    }
  }
  __device__ __forceinline__ int keys() const { return position + count; }  // up to the last query's own
  // The first key that any row sees, rounded down to a multiple of kStep.
  template <int kStep>
  __device__ __forceinline__ int first_key(int window) const {
    return window > 0 ? max_of(0, position - window + 1) / kStep * kStep : 0;
  }
  // Whether some row does not see some of the keys key .. key + kStep - 1.
  template <int kStep>
  __device__ __forceinline__ bool hides(int key, int window) const {
    return key + kStep - 1 > position || (window > 0 && key <= position + count - 1 - window);
  }
};

}  // namespace tl
