// Where the state of a sequence lies before and after a step.
#pragma once

#include "cuda/types.cuh"

namespace tl {

// The new tokens of a sequence, `count` of them from row `first` on, and the blocks of its state before and after them.
// A sequence that begins has no `source`, which is -1: its state is zero. Without new tokens nothing is read or
// written.
struct StateSpan {
  int first, count, source, target;
};

// The states of a layer and the step inputs that locate them; `tables` is the first sequence's table of the layer's
// cache group, and the table of the next sequence begins `table_stride` entries later. From a block to the next there
// are TL_BLOCK_BYTES, a multiple of 16; a state may be longer. Macros: TL_BLOCK_BYTES, TL_TOKENS_PER_STATE.
struct StatePlaces {
  float* states;
  const int* cu_seqlens;
  const int* past_lens;
  const int* tables;
  int table_stride;

  __device__ __forceinline__ StateSpan of(int seq) const {
    const int first = cu_seqlens[seq], count = cu_seqlens[seq + 1] - first, past = past_lens[seq];
    if (count <= 0) return {first, 0, -1, -1};
    const int* table = tables + static_cast<u64>(seq) * table_stride;
    const int source = past > 0 ? table[(past - 1) / TL_TOKENS_PER_STATE] : -1;
    return {first, count, source, table[(past + count - 1) / TL_TOKENS_PER_STATE]};
  }
  // The state that begins in `block`.
  __device__ __forceinline__ float* state(int block) const {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(states) + static_cast<u64>(block) * TL_BLOCK_BYTES);
  }
};

}  // namespace tl
