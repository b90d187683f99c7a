// How decode attention shares its work among the blocks of one wave.
//
// A unit is kChunk tokens of one KV head of one sequence; units are numbered sequence by sequence, head by head. Block
// b takes an equal run of them, whatever the lengths, so that it may end one (sequence, head) pair, do several, and
// begin another. Pairs that several blocks share are combined by whichever of those finishes last.
#pragma once

#include "cuda/types.cuh"

namespace tl {

template <int kKvHeads, int kChunk, int kMaxSeqs>
struct SplitTable {
  int lengths[kMaxSeqs];
  int first_unit[kMaxSeqs + 1];

  __device__ __forceinline__ static int first_token(int length, int window) {
    return window > 0 && length > window ? length - window : 0;
  }
  // Chunks of a sequence start at multiples of kChunk, so that they line up with the cache's blocks.
  __device__ __forceinline__ static int first_chunk(int length, int window) {
    return first_token(length, window) / kChunk;
  }
  __device__ __forceinline__ static int num_chunks(int length, int window) {
    return ceil_div(length, kChunk) - first_chunk(length, window);
  }

  // By one warp: each lane sums a run of sequences, then one scan over the lanes. A sequence has past_lens + 1 tokens.
  __device__ void build(const int* past_lens, int num_seqs, int window) {
    const int lane = threadIdx.x % 32, run = ceil_div(num_seqs, 32), begin = lane * run;
    int sum = 0;
    for (int s = begin; s < begin + run && s < num_seqs; ++s) {
      lengths[s] = past_lens[s] + 1;
      sum += num_chunks(lengths[s], window) * kKvHeads;
    }
    int before = sum;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, before, offset);
      if (lane >= offset) before += other;
    }
    before -= sum;
    for (int s = begin; s < begin + run && s < num_seqs; ++s) {
      first_unit[s] = before;
      before += num_chunks(lengths[s], window) * kKvHeads;
    }
    if (begin < num_seqs && begin + run >= num_seqs) first_unit[num_seqs] = before;
  }

  __device__ __forceinline__ int find(int unit, int num_seqs) const {
    int low = 0, high = num_seqs - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_unit[middle] <= unit) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

// A unit and what it belongs to; next() walks to the following one.
template <class Table>
struct UnitCursor {
  const Table& table;
  int window;
  int seq, head, chunk, end_chunk;  // chunk in the sequence; end_chunk is one past its last

  __device__ __forceinline__ UnitCursor(const Table& t, int unit, int num_seqs, int w) : table(t), window(w) {
    seq = t.find(unit, num_seqs);
    enter();
    const int chunks = end_chunk - chunk, local = unit - t.first_unit[seq];
    head = local / chunks;
    chunk += local % chunks;
  }
  __device__ __forceinline__ void enter() {
    const int length = table.lengths[seq];
    chunk = Table::first_chunk(length, window);
    end_chunk = chunk + Table::num_chunks(length, window);
    head = 0;
  }
  template <int kKvHeads>
  __device__ __forceinline__ void next() {
    if (++chunk < end_chunk) return;
    if (++head < kKvHeads) {
      chunk = Table::first_chunk(table.lengths[seq], window);
    } else {
      ++seq;
      enter();
    }
  }
};

// The blocks that work (each on at least one unit), block b's first unit, and the block that holds unit u.
struct Shares {
  int units, blocks;

  __device__ __forceinline__ explicit Shares(int num_units)
      : units(num_units), blocks(min_of(num_units, static_cast<int>(gridDim.x))) {}
  __device__ __forceinline__ int first_unit(int block) const {
    return static_cast<int>(static_cast<u64>(block) * units / blocks);
  }
  __device__ __forceinline__ int block_of(int unit) const {
    return static_cast<int>(((static_cast<u64>(unit) + 1) * blocks - 1) / units);
  }
};

}  // namespace tl
