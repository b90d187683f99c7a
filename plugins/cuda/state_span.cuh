// Where the state of a sequence lies.
#pragma once

#include "cuda/types.cuh"

namespace tl {

// The new tokens of a sequence, `count` of them from row `first` on, after `past` tokens, and the block of its state.
// Without new tokens nothing is read or written.
struct StateSpan {
  int first, count, past, block;

  __device__ __forceinline__ int end() const { return past + count; }
};

// The states of a layer and the step inputs that locate them; `tables` is the first sequence's table of the layer's
// cache group, and the table of the next sequence begins `table_stride` entries later. From a block to the next there
// are TL_BLOCK_BYTES, a multiple of 16; a state may be longer.
struct StatePlaces {
  float* states;
  const int* cu_seqlens;
  const int* past_lens;
  const int* tables;
  int table_stride;

  __device__ __forceinline__ StateSpan of(int seq) const {
    // All are requested at once, whether or not the sequence has new tokens: a branch would put some after others.
    const int first = cu_seqlens[seq], end = cu_seqlens[seq + 1];
    const int past = past_lens[seq], block = tables[static_cast<u64>(seq) * table_stride];
    const bool has_tokens = end > first;
    return {first, has_tokens ? end - first : 0, has_tokens ? past : 0, has_tokens ? block : -1};
  }
  // The state that begins in `block`.
  __device__ __forceinline__ float* state(int block) const {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(states) + static_cast<u64>(block) * TL_BLOCK_BYTES);
  }
};

}  // namespace tl
