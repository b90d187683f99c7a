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
#pragma once

#include "cuda/replay_token_chunk.cuh"

namespace tl {

// Four successive elements of the matrix from number `i` on; the matrix has columns up to `count` of them.
__device__ __forceinline__ void load_quad(const ReplayState& state, u64 i, int count, float (&to)[4]) {
  if constexpr (TL_VALUE_DIM % 4 > 0) {
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j] = j < count ? state.element(i + j) : 0.0f;
  } else if constexpr (sizeof(StateElement) == 4) {
    const float4 quad = *reinterpret_cast<const float4*>(state.state + i);
    to[0] = quad.x, to[1] = quad.y, to[2] = quad.z, to[3] = quad.w;
  } else {
    const uint2 quad = *reinterpret_cast<const uint2*>(reinterpret_cast<const StateElement*>(state.state) + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      to[j] = widen_element(static_cast<StateElement>((j < 2 ? quad.x : quad.y) >> j % 2 * 16));
    }
  }
}
__device__ __forceinline__ void store_quad(const ReplayState& state, u64 i, int count, const float (&of)[4]) {
  if constexpr (TL_VALUE_DIM % 4 > 0 || sizeof(StateElement) == 2) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j < count) state.store_element(i + j, of[j]);
    }
  } else {
    *reinterpret_cast<float4*>(state.state + i) = make_float4(of[0], of[1], of[2], of[3]);
  }
}

// A thread's part of the matrix: rows 64 * i + first_row() + j, and four columns of each.
struct Columns {
  float rows[kQuads][4][4];

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int part() { return threadIdx.x / 32 % kGroupWarps; }
  static __device__ __forceinline__ int first_row() { return 4 * (4 * part() + lane() / 8); }
  // The number of the first column among those of the block.
  static __device__ __forceinline__ int of_thread() {
    return threadIdx.x / 32 / kGroupWarps * kGroupColumns + lane() % 8 * 4;
  }

  // Calls use(row, elements) for each row that the matrix has.
  template <typename Use>
  __device__ __forceinline__ void for_each(const Use& use) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = 64 * i + first_row() + j;
        if (row < TL_KEY_DIM) use(row, rows[i][j]);
      }
    }
  }

  // Adds to `of_key` and `of_query` what a token's key and query find in the thread's rows.
  __device__ __forceinline__ void find(Chunk& chunk, int token, float (&of_key)[4], float (&of_query)[4]) const {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int first = 64 * i + first_row();
      const float4 keys = *reinterpret_cast<const float4*>(chunk.key(token) + first);
      const float4 queries = *reinterpret_cast<const float4*>(chunk.query(token) + first);
      const float key[4] = {keys.x, keys.y, keys.z, keys.w}, query[4] = {queries.x, queries.y, queries.z, queries.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // Rows that decay each by itself have done so since the beginning of the chunk.
        const bool decays = kDecaysByRow && first + j < TL_KEY_DIM;
        const float decay = decays ? expf(chunk.total(token, first + j)) : 1.0f;
#pragma unroll
        for (int column = 0; column < 4; ++column) {
          of_key[column] = fmaf(key[j] * decay, rows[i][j][column], of_key[column]);
          of_query[column] = fmaf(query[j] * decay, rows[i][j][column], of_query[column]);
        }
      }
    }
  }

  // Stores what a token's key and query find in the warp's rows, and in the updates of every fourth token before it. Of
  // the four lanes that have the same columns each adds up one.
  __device__ __forceinline__ void store_found(Chunk& chunk, int token) const {
    float of_key[4] = {}, of_query[4] = {};
    find(chunk, token, of_key, of_query);
    const bool second = lane() / 16 == 1, odd = lane() / 8 % 2 == 1;
    float two[2][2];  // of columns 0 and 1, or 2 and 3
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      two[0][i] =
          (second ? of_key[2 + i] : of_key[i]) + __shfl_xor_sync(0xffffffffu, second ? of_key[i] : of_key[2 + i], 16);
      two[1][i] = (second ? of_query[2 + i] : of_query[i]) +
                  __shfl_xor_sync(0xffffffffu, second ? of_query[i] : of_query[2 + i], 16);
    }
    float found[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      found[i] = (odd ? two[i][1] : two[i][0]) + __shfl_xor_sync(0xffffffffu, odd ? two[i][0] : two[i][1], 8);
    }
    const int column = of_thread() + lane() / 8 % 2 + lane() / 16 * 2;
    const float decay = kDecaysByRow ? 1.0f : expf(chunk.total(token, 0));
    found[0] *= decay, found[1] *= decay;
#pragma unroll
    for (int i = 0; i < kChunk / kGroupWarps; ++i) {
      const int other = kGroupWarps * i + part();
      if (other >= token) continue;
      const float update = chunk.updates(other)[column];
      found[0] = fmaf(chunk.key_weights[token * kChunk + other], update, found[0]);
      found[1] = fmaf(chunk.query_weights[token * kChunk + other], update, found[1]);
    }
    chunk.found[part()][column] = make_float2(found[0], found[1]);
  }

  // Adds all tokens of the chunk, for which weigh_rows() was called, to the matrix.
  __device__ __forceinline__ void advance(Chunk& chunk) {
    for_each([&](int row, float (&elements)[4]) {
      const float decay = expf(chunk.total(kChunk - 1, row));
#pragma unroll
      for (int column = 0; column < 4; ++column) elements[column] *= decay;
    });
#pragma unroll 4
    for (int token = 0; token < kChunk; ++token) {
      const float4 update = *reinterpret_cast<const float4*>(chunk.updates(token) + of_thread());
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float4 factors = *reinterpret_cast<const float4*>(chunk.query(token) + 64 * i + first_row());
        const float factor[4] = {factors.x, factors.y, factors.z, factors.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          rows[i][j][0] = fmaf(factor[j], update.x, rows[i][j][0]);
          rows[i][j][1] = fmaf(factor[j], update.y, rows[i][j][1]);
          rows[i][j][2] = fmaf(factor[j], update.z, rows[i][j][2]);
          rows[i][j][3] = fmaf(factor[j], update.w, rows[i][j][3]);
        }
      }
    }
  }
};

// Completes a token from what all warps found, a column in each of the first kColumns threads: its update, and its
// result, which goes to row `row`.
template <typename Operands>
__device__ __forceinline__ void finish_token(Chunk& chunk, const Operands& from, const ReplayState& state, u64 row,
                                             int base, int token, int first_column) {
  const int own = threadIdx.x, number = first_column + own;
  if (own >= kColumns) return;
  float2 found = chunk.found[0][own];
#pragma unroll
  for (int part = 1; part < kGroupWarps; ++part) {
    const float2 other = chunk.found[part][own];
    found.x += other.x, found.y += other.y;
  }
  const float value = chunk.updates(token)[own];
  const float update = chunk.factors[token] * (Operands::kCorrects ? value - found.x : value);
  chunk.updates(token)[own] = update;
  if (number >= TL_VALUE_DIM) return;
  float result = fmaf(chunk.query_weights[token * kChunk + token], update, found.y);
  if constexpr (Operands::kAddsValue) result = fmaf(from.of_value(), value, result);
  *from.result(row, number) = pack1(result);
  if (state.keeps(base + token)) state.update(base + token)[number] = update;
}

// Computes a step's tokens in the columns from `first_column` on, and stores their part of the state. Returns the
// position from which on tokens are in `chunk`.
template <typename Operands>
__device__ __forceinline__ int run_columns(Chunk& chunk, const Operands& from, ReplayState& state, StateSpan span,
                                           int first_column) {
  Columns columns = {};
  const int number = first_column + Columns::of_thread(), num_columns = TL_VALUE_DIM - number;
  // The matrix and the tokens of the last chunk are requested before it is known how many tokens are in the matrix.
  if (state.past > 0 && num_columns > 0) {
    columns.for_each([&](int row, float (&elements)[4]) {
      load_quad(state, static_cast<u64>(row) * TL_VALUE_DIM + number, num_columns, elements);
    });
  }
  int requested = state.past / kChunk * kChunk;
  const ChunkSpan last(state, span, requested);
  float decay = request_stored_tokens(chunk, state, requested, last.first, first_column);
  wait_for_previous_kernel();
  allow_next_kernel();
  load_new_tokens(chunk, from, last, first_column);
  store_decay(chunk, last.first, decay);
  state.settle(span);
  for (int base = state.length;; base += kChunk) {
    const ChunkSpan tokens(state, span, base);
    const int first = tokens.first, count = tokens.count;
    if (base != requested) {
      copy_wait<0>();
      __syncthreads();  // the tokens before these are in the matrix
      decay = request_stored_tokens(chunk, state, base, first, first_column);
      load_new_tokens(chunk, from, tokens, first_column);
      store_decay(chunk, first, decay);
    }
    requested = -1;
    copy_wait<0>();
    if (base == 0) columns = {};
    __syncthreads();
    weigh_tokens(chunk, first, count);
    for (int token = first; token < count; ++token) {
      __syncthreads();
      columns.store_found(chunk, token);
      __syncthreads();
      finish_token(chunk, from, state, tokens.row + token - first, base, token, first_column);
    }
    if (base + kChunk >= state.end) return base;
    __syncthreads();  // queries are read
    weigh_rows(chunk);
    if (threadIdx.x == 0 && !kDecaysByRow) chunk.totals[kChunk - 1] = chunk.decay_between(-1, kChunk - 1, 0);
    __syncthreads();
    columns.advance(chunk);
    columns.for_each([&](int row_of_matrix, float (&elements)[4]) {
#pragma unroll
      for (int j = 0; j < 4; ++j) elements[j] = kept_element(elements[j]);
      if (base + kChunk != state.next_length || num_columns <= 0) return;
      store_quad(state, static_cast<u64>(row_of_matrix) * TL_VALUE_DIM + number, num_columns, elements);
    });
  }
}

// Stores the keys and decays of the step's tokens that stay behind the matrix, and its length. Tokens from position
// `base` on are in `chunk`.
template <typename Operands>
__device__ __forceinline__ void store_tokens(Chunk& chunk, const Operands& from, const ReplayState& state,
                                             StateSpan span, int base) {
  const int lane = threadIdx.x % 32;
  const int kept = state.next_length > span.past ? state.next_length : span.past;
  for (int position = kept + threadIdx.x / 32; position < state.end; position += kWarps) {
    if (position >= base) {
      const int token = position - base;
      for (int i = lane; i < TL_KEY_DIM; i += 32) state.key(position)[i] = chunk.key(token)[i];
      for (int i = lane; i < TL_DECAY_DIM; i += 32) state.decay(position)[i] = chunk.decays(token)[i];
      continue;
    }
    const u64 row = static_cast<u64>(span.first + position - span.past);
    load_vector<false>(from, row, [&](int i, float x) { state.key(position)[i] = x; });
    for (int i = lane; i < TL_DECAY_DIM; i += 32) {
      state.decay(position)[i] = from.log_decay(from.decay_input(row, i), i);
    }
  }
  if (threadIdx.x == 0) state.store_length();
}

// Computes block number `block` of a head of a sequence, unless it has chunks, and stores its tokens: the elements
// `of_head` of its state, the new tokens in `span`.
template <typename Operands>
__device__ __forceinline__ void replay_tokens(const Operands& from, float* of_head, StateSpan span, int block) {
  __shared__ Chunk chunk;
  ReplayState state(of_head, span);
  int base = state.end;
  for (int column = 0; column < TL_COLUMNS && !has_chunks(span); column += kColumns) {
    if (column > 0) __syncthreads();  // all have finished with the chunk
    base = run_columns(chunk, from, state, span, block * TL_COLUMNS + column);
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
