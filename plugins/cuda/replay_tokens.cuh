// Computes tokens one after the other; see cuda/replay_rule.cuh.
//
// Bytes of a sequence and head: the matrix, 4 * key_dim * value_dim (half of that in 16 bits), which is read in every
// step and written in every 16th; of each token behind it 4 * (key_dim + value_dim + decays), which every step reads
// and writes for its own tokens; and what tokens have. Floor: bytes / bandwidth; of a long prompt the latency of its
// chunks.
//
// A block has TL_COLUMNS columns of the matrix, which do not depend on each other; the blocks of a head form a cluster,
// and wait for each other before the state's tokens are replaced. Small blocks keep more bytes in flight: while some of
// a multiprocessor compute, others load. What the state has is requested before the previous kernel ends, which writes
// rows of this step, or the matrices and updates of sequences with chunks.
//
// A thread has four successive columns of every 16th group of four rows in registers. Tokens come in chunks that begin
// at multiples of 16 positions (arXiv 2412.06464, section 3.3): the matrix is multiplied by a token's query and key,
// and the tokens of the chunk before it add what they would have changed. At the end of the chunk all its tokens are
// added to the matrix. Chunks begin at the same positions however a sequence is divided into steps, and sums run in
// order, so that it gets the same bits.
//
// Launch: with TL_PREFETCHES a few blocks, which walk through all heads of all sequences (cuda/replay_walk.cuh);
// otherwise grid = (heads * kBlocks, sequences). TL_THREADS threads, TL_BLOCKS_AT_ONCE blocks of a multiprocessor.
#pragma once

#include "cuda/cluster.cuh"

#if TL_PREFETCHES
#include "cuda/replay_walk.cuh"
#else
#include "cuda/replay_columns.cuh"

namespace tl {

static_assert(kBlocks == 1 || TL_HAS_CLUSTERS);

// Requests the columns from `first_column` on and their tokens, before the previous kernel ends and before it is known
// how many tokens are in the matrix; then computes them by run_columns().
template <typename Operands>
__device__ __forceinline__ int load_and_run_columns(Chunk& chunk, const Operands& from, ReplayState& state,
                                                    StateSpan span, int first_column) {
  Columns columns = {};
  const int number = first_column + Columns::of_thread(), num_columns = TL_VALUE_DIM - number;
  if (state.past > 0 && num_columns > 0) {
    columns.for_each([&](int row, float (&elements)[4]) {
      load_quad(state.elements() + static_cast<u64>(row) * TL_VALUE_DIM + number, elements, num_columns);
    });
  }
  const int requested = ReplayState::likely_length(span);
  const ChunkSpan tokens(state, span, requested);
  const float decay = request_stored_tokens(chunk, state, requested, tokens.first, first_column);
  wait_for_previous_kernel();
  allow_next_kernel();
  load_new_tokens<kWarps>(chunk, from, tokens, first_column, threadIdx.x / 32);
  store_decay(chunk, tokens.first, decay);
  state.settle(span);
  copy_wait<0>();
  return run_columns(chunk, columns, from, state, span, first_column, requested, false);
}

// Computes a head of a sequence: a cluster of kBlocks blocks has its columns.
template <typename MakeOperands>
__device__ __forceinline__ void replay_tokens(const StatePlaces& places, int, int, const MakeOperands& operands_of) {
  __shared__ Chunk chunk;
  const StateSpan span = places.of(blockIdx.y);
  if (span.count == 0) {
    wait_for_previous_kernel();
    allow_next_kernel();
    return;
  }
  const int head = blockIdx.x / kBlocks, block = blockIdx.x % kBlocks;
  const auto from = operands_of(head);
  ReplayState state(places.state(span.block) + head * kStateSize, span);
  int base = state.end;
  for (int column = 0; column < TL_COLUMNS && !has_chunks(span); column += kColumns) {
    if (column > 0) __syncthreads();  // all have finished with the chunk
    base = load_and_run_columns(chunk, from, state, span, block * TL_COLUMNS + column);
  }
  if (has_chunks(span)) {
    wait_for_previous_kernel();
    allow_next_kernel();
    state.settle(span);
  }
  // Other blocks of the cluster may still read the tokens that are replaced.
  __syncthreads();
  if constexpr (kBlocks > 1) {
    cluster_arrive();
    if (block > 0) return;
    cluster_wait();
  }
  store_tokens(chunk, from, state, span, base);
}

}  // namespace tl
#endif
