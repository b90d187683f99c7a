// Finds the sequence of a number that counts blocks through all sequences of a step.
#pragma once

#include "cuda/types.cuh"

namespace tl {

// Called by whole warps, with numbers that never decrease.
struct SequenceSearch {
  int seqs = 0, blocks = 0;  // sequences that are passed, in steps of a warp, and how many blocks they have

  struct Place {
    int seq = -1, block;  // -1: all sequences together have no such block
  };
  // Finds block `index`; sequence s has count(s) blocks.
  template <class Count>
  __device__ __forceinline__ Place find(int index, int num_seqs, int lane, Count count) {
    for (; seqs < num_seqs; seqs += 32) {
      const int mine = seqs + lane < num_seqs ? count(seqs + lane) : 0;
      int through = mine;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, through, offset);
        if (lane >= offset) through += other;
      }
      const u32 behind = __ballot_sync(0xffffffffu, index - blocks < through);
      if (behind != 0) {
        const int found = __ffs(behind) - 1;
        return Place{seqs + found, index - blocks - __shfl_sync(0xffffffffu, through - mine, found)};
      }
      blocks += __shfl_sync(0xffffffffu, through, 31);
    }
    return Place{};
  }
};

}  // namespace tl
