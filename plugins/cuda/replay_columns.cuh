// A block's columns of the matrix, in registers, and the tokens that go through them; see cuda/replay_tokens.cuh.
#pragma once

#include "cuda/replay_token_chunk.cuh"

namespace tl {

// Four successive elements of the matrix; it has columns up to `count` of them.
__device__ __forceinline__ void load_quad(const StateElement* from, float (&to)[4], int count = 4) {
  if constexpr (TL_VALUE_DIM % 4 > 0) {
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j] = j < count ? widen_element(from[j]) : 0.0f;
  } else if constexpr (sizeof(StateElement) == 4) {
    const float4 quad = *reinterpret_cast<const float4*>(from);
    to[0] = quad.x, to[1] = quad.y, to[2] = quad.z, to[3] = quad.w;
  } else {
    const uint2 quad = *reinterpret_cast<const uint2*>(from);
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

  // Adds all tokens of the chunk to the matrix.
  __device__ __forceinline__ void advance(Chunk& chunk) {
    for_each([&](int row, float (&elements)[4]) {
      const float decay = kDecaysByRow ? expf(chunk.total(kChunk - 1, row)) : chunk.left_of_matrix;
#pragma unroll
      for (int column = 0; column < 4; ++column) elements[column] *= decay;
    });
#pragma unroll 4
    for (int token = 0; token < kChunk; ++token) {
      const float4 given = *reinterpret_cast<const float4*>(chunk.updates(token) + of_thread());
      const float left = kDecaysByRow ? 1.0f : chunk.left[token];
      const float update[4] = {given.x * left, given.y * left, given.z * left, given.w * left};
      const float* const factors = kDecaysByRow ? chunk.query(token) : chunk.key(token);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float4 quad = *reinterpret_cast<const float4*>(factors + 64 * i + first_row());
        const float factor[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int column = 0; column < 4; ++column) {
            rows[i][j][column] = fmaf(factor[j], update[column], rows[i][j][column]);
          }
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

// Computes a step's tokens in `columns`, of which the first has number `first_column`, and stores their part of the
// state. Returns the position from which on tokens are in `chunk`; it has those from position `requested` on already,
// whose copies this thread has waited for. If they are `weighed`, all threads see them.
template <typename Operands>
__device__ __forceinline__ int run_columns(Chunk& chunk, Columns& columns, const Operands& from,
                                           const ReplayState& state, StateSpan span, int first_column, int requested,
                                           bool weighed) {
  const int number = first_column + Columns::of_thread(), warp = threadIdx.x / 32;
  TokenPart ahead = {};  // of the next chunk, requested while the matrix advances
  for (int base = state.length, parts_ahead = 0;; base += kChunk) {
    const ChunkSpan tokens(state, span, base);
    const int first = tokens.first, count = tokens.count;
    if (base != requested) {
      sync_columns();  // the tokens before these are in the matrix
      const float decay = request_stored_tokens(chunk, state, base, first, first_column);
      if (warp < parts_ahead) ahead.store(chunk, from, first + warp / kTokenParts, warp % kTokenParts);
      load_new_tokens<kWarps>(chunk, from, tokens, first_column, warp + min_of(parts_ahead, kWarps));
      store_decay(chunk, first, decay);
      copy_wait<0>();
    }
    if (base == 0) columns = {};
    bool seen = weighed && base == requested;
    if (!seen) {
      sync_columns();
      weigh_tokens<kReplayThreads>(chunk, first, count, threadIdx.x);
    }
    requested = -1;
    for (int token = first; token < count; ++token, seen = false) {
      if (!seen) sync_columns();
      columns.store_found(chunk, token);
      sync_columns();
      finish_token(chunk, from, state, tokens.row + token - first, base, token, first_column);
    }
    const int next = base + kChunk;
    if (next >= state.end && next != state.next_length) return base;
    if (next < state.end) {
      const ChunkSpan after(state, span, next);
      parts_ahead = kTokenParts * (after.count - after.first);
      if (warp < parts_ahead) ahead.request(from, after.row + warp / kTokenParts, warp % kTokenParts, first_column);
    }
    sync_columns();  // updates are complete, and queries are read
    if constexpr (kDecaysByRow) {
      weigh_rows(chunk);
      sync_columns();
    }
    columns.advance(chunk);
    columns.for_each([&](int row, float (&elements)[4]) {
#pragma unroll
      for (int j = 0; j < 4; ++j) elements[j] = kept_element(elements[j]);
      if (next != state.next_length || number >= TL_VALUE_DIM) return;
      store_quad(state, static_cast<u64>(row) * TL_VALUE_DIM + number, TL_VALUE_DIM - number, elements);
    });
    if (next >= state.end) return base;
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
      state.decay(position)[i] = from.log_decay(unpack1(from.decay_bits(row, i)), i);
    }
  }
  if (threadIdx.x == 0) state.store_length();
}

}  // namespace tl
