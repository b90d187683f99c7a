// Computes tokens one after the other; see cuda/replay_rule.cuh.
//
// Bytes of a sequence and head: the matrix, 4 * key_dim * value_dim (half of that in 16 bits), which is read in every
// step and written in every 16th; of each token behind it 4 * (key_dim + value_dim + decays), which every step reads
// and writes for its own tokens; and what tokens have. Floor: bytes / bandwidth; of a long prompt the latency of its
// chunks.
//
// Four lanes share a column of the matrix, and each keeps a quarter of its rows in registers; columns do not depend on
// each other. Tokens come in chunks that begin at multiples of 16 positions (arXiv 2412.06464, section 3.3): the matrix
// is multiplied by a token's query and key, and the tokens of the chunk before it add what they would have changed. At
// the end of the chunk all its tokens are added to the matrix. Chunks begin at the same positions however a sequence is
// divided into steps, and sums run in order, so that it gets the same bits.
#pragma once

#include "cuda/replay_rule.cuh"

namespace tl {

constexpr int kColumns = TL_VALUE_DIM < 128 ? (TL_VALUE_DIM + 7) / 8 * 8 : 128;  // at a time
constexpr int kReplayThreads = 4 * kColumns, kWarps = kReplayThreads / 32;
constexpr int kQuads = ceil_div(TL_KEY_DIM, 16);  // groups of four successive rows that a lane has
constexpr int kRows = kQuads * 16;                // of shared memory; rows beyond the state are zero
constexpr bool kDecaysByRow = TL_DECAY_DIM > 1;
static_assert(TL_KEY_DIM <= 256 && (TL_DECAY_DIM == 1 || TL_DECAY_DIM == TL_KEY_DIM));

// The tokens of a chunk, in shared memory.
struct Chunk {
  float4 key_quads[kChunk * kRows / 4];
  float4 query_quads[kChunk * kRows / 4];  // and then the factors of updates, see weigh_rows()
  float decays[kChunk * TL_DECAY_DIM];     // logarithms
  float totals[kChunk * TL_DECAY_DIM];     // their sums from the beginning of the chunk up to each token
  float key_weights[kChunk * kChunk];      // how far the update of a token changes what a later key finds
  float query_weights[kChunk * kChunk];    // and what a query finds, that of the token itself included
  float factors[kChunk];                   // of values in updates

  __device__ __forceinline__ float* key(int token) { return reinterpret_cast<float*>(key_quads) + token * kRows; }
  __device__ __forceinline__ float* query(int token) { return reinterpret_cast<float*>(query_quads) + token * kRows; }
  __device__ __forceinline__ float total(int token, int row) const {
    return totals[token * TL_DECAY_DIM + (kDecaysByRow ? row : 0)];
  }
  // The logarithm of the decays after token `from` up to token `until`. They are added up, because differences of
  // totals lose the digits of small decays behind large ones.
  __device__ __forceinline__ float decay_between(int from, int until, int row) const {
    float sum = 0.0f;
    for (int token = until; token > from; --token) sum += decays[token * TL_DECAY_DIM + (kDecaysByRow ? row : 0)];
    return sum;
  }
};

// Loads the `count` tokens from position `base` on; each warp loads some of them.
template <typename Operands>
__device__ __forceinline__ void load_tokens(Chunk& chunk, const Operands& from, const ReplayState& state, int first_row,
                                            int base, int count) {
  const int lane = threadIdx.x % 32;
  for (int token = threadIdx.x / 32; token < count; token += kWarps) {
    const int position = base + token;
    const u64 row = static_cast<u64>(first_row + position - state.past);
    float* const key = chunk.key(token);
    float* const query = chunk.query(token);
    for (int i = TL_KEY_DIM + lane; i < kRows; i += 32) key[i] = query[i] = 0.0f;
    if (state.is_new(position)) {
      load_vector<false>(from, row, [&](int i, float x) { key[i] = x; });
      load_vector<true>(from, row, [&](int i, float x) { query[i] = x; });
      for (int i = lane; i < TL_DECAY_DIM; i += 32) {
        chunk.decays[token * TL_DECAY_DIM + i] = from.log_decay(from.decay_input(row, i), i);
      }
      if (lane == 0) chunk.factors[token] = from.factor(from.factor_input(row));
    } else {
      for (int i = lane; i < TL_KEY_DIM; i += 32) key[i] = state.key(position)[i];
      for (int i = lane; i < TL_DECAY_DIM; i += 32) {
        chunk.decays[token * TL_DECAY_DIM + i] = state.decay(position)[i];
      }
    }
  }
}

// Computes totals, and the weights of the tokens from `first` on; each warp computes some pairs of tokens.
__device__ __forceinline__ void weigh_tokens(Chunk& chunk, int first, int count) {
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < TL_DECAY_DIM; i += kReplayThreads) {
    float sum = 0.0f;
    for (int token = 0; token < count; ++token) {
      sum += chunk.decays[token * TL_DECAY_DIM + i];
      chunk.totals[token * TL_DECAY_DIM + i] = sum;
    }
  }
  for (int pair = threadIdx.x / 32; pair < (count - first) * kChunk; pair += kWarps) {
    const int token = first + pair / kChunk, other = pair % kChunk;
    if (other > token) continue;
    float of_key = 0.0f, of_query = 0.0f;
    for (int i = lane; i < TL_KEY_DIM; i += 32) {
      const float decay = kDecaysByRow ? expf(chunk.decay_between(other, token, i)) : 1.0f;
      const float key = chunk.key(other)[i] * decay;
      of_key = fmaf(key, chunk.key(token)[i], of_key);
      of_query = fmaf(key, chunk.query(token)[i], of_query);
    }
    of_key = warp_sum(of_key);
    of_query = warp_sum(of_query);
    const float decay = kDecaysByRow ? 1.0f : expf(chunk.decay_between(other, token, 0));
    if (lane == 0) {
      chunk.key_weights[token * kChunk + other] = of_key * decay;
      chunk.query_weights[token * kChunk + other] = of_query * decay;
    }
  }
}

// Puts into the place of queries by how much the update of each token changes each row of the matrix.
__device__ __forceinline__ void weigh_rows(Chunk& chunk) {
  for (int i = threadIdx.x; i < kRows; i += kReplayThreads) {
    float sum = 0.0f;
    for (int token = kChunk - 1; token >= 0; --token) {
      chunk.query(token)[i] = i < TL_KEY_DIM ? chunk.key(token)[i] * expf(sum) : 0.0f;
      if (i < TL_KEY_DIM) sum += chunk.decays[token * TL_DECAY_DIM + (kDecaysByRow ? i : 0)];
    }
  }
}

// A sum over the rows of a column, of which a lane adds up a quarter in four parts.
struct RowSum {
  float parts[4] = {};

  __device__ __forceinline__ void add(float4 vector, const float (&of_column)[4]) {
    parts[0] = fmaf(vector.x, of_column[0], parts[0]);
    parts[1] = fmaf(vector.y, of_column[1], parts[1]);
    parts[2] = fmaf(vector.z, of_column[2], parts[2]);
    parts[3] = fmaf(vector.w, of_column[3], parts[3]);
  }
  __device__ __forceinline__ float of_column() const {
    float sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 16);
  }
};

// A lane's rows of one column of the matrix: row 16 * i + 4 * (lane / 8) + j is rows[i][j]. And the column's updates by
// the tokens of the chunk, which all four lanes have.
struct Column {
  float rows[kQuads][4];
  float updates[kChunk];

  static __device__ __forceinline__ int quarter() { return threadIdx.x % 32 / 8; }

  // Calls use(row, element) for each element that the matrix has.
  template <typename Use>
  __device__ __forceinline__ void for_each(const Use& use) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = 16 * i + 4 * quarter() + j;
        if (row < TL_KEY_DIM) use(row, rows[i][j]);
      }
    }
  }

  // The elements as they have decayed since the beginning of the chunk up to `token`, if each row decays by itself.
  __device__ __forceinline__ void decayed(const Chunk& chunk, int token, int i, float (&to)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = 16 * i + 4 * quarter() + j;
      to[j] = kDecaysByRow && row < TL_KEY_DIM ? rows[i][j] * expf(chunk.total(token, row)) : rows[i][j];
    }
  }

  // Computes the update by `token`, whose value is `value`; returns the token's result.
  template <int kToken, bool kCorrects>
  __device__ __forceinline__ float add_token(Chunk& chunk, float value) {
    RowSum of_key, of_query;
    const float4* const key = reinterpret_cast<const float4*>(chunk.key(kToken));
    const float4* const query = reinterpret_cast<const float4*>(chunk.query(kToken));
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      float elements[4];
      decayed(chunk, kToken, i, elements);
      of_key.add(key[4 * i + quarter()], elements);
      of_query.add(query[4 * i + quarter()], elements);
    }
    const float decay = kDecaysByRow ? 1.0f : expf(chunk.total(kToken, 0));
    float seen = of_key.of_column() * decay, result = of_query.of_column() * decay;
#pragma unroll
    for (int other = 0; other < kToken; ++other) {
      seen = fmaf(chunk.key_weights[kToken * kChunk + other], updates[other], seen);
      result = fmaf(chunk.query_weights[kToken * kChunk + other], updates[other], result);
    }
    updates[kToken] = chunk.factors[kToken] * (kCorrects ? value - seen : value);
    return fmaf(chunk.query_weights[kToken * kChunk + kToken], updates[kToken], result);
  }

  // Adds all tokens of the chunk, for which weigh_rows() was called, to the matrix.
  __device__ __forceinline__ void advance(Chunk& chunk) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = 16 * i + 4 * quarter() + j;
        if (row < TL_KEY_DIM) rows[i][j] *= expf(chunk.total(kChunk - 1, row));
      }
    }
#pragma unroll
    for (int token = 0; token < kChunk; ++token) {
      const float4* const factors = reinterpret_cast<const float4*>(chunk.query(token));
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float4 factor = factors[4 * i + quarter()];
        rows[i][0] = fmaf(factor.x, updates[token], rows[i][0]);
        rows[i][1] = fmaf(factor.y, updates[token], rows[i][1]);
        rows[i][2] = fmaf(factor.z, updates[token], rows[i][2]);
        rows[i][3] = fmaf(factor.w, updates[token], rows[i][3]);
      }
    }
  }
};

// Computes the tokens of a chunk from kToken on, of which there are `count`, `first` of them in the state. `number`:
// the column.
template <int kToken, typename Operands>
__device__ __forceinline__ void run_tokens(Column& column, Chunk& chunk, const Operands& from, const ReplayState& state,
                                           int first_row, int base, int first, int count, int number) {
  if constexpr (kToken < kChunk) {
    if (kToken >= count) return;
    const bool has_column = number < TL_VALUE_DIM;
    const int position = base + kToken;
    if (kToken < first) {
      column.updates[kToken] = has_column ? state.update(position)[number] : 0.0f;
    } else {
      const u64 row = static_cast<u64>(first_row + position - state.past);
      const float value = has_column ? unpack1(from.values(row)[number]) : 0.0f;
      float result = column.template add_token<kToken, Operands::kCorrects>(chunk, value);
      if (Column::quarter() == 0 && has_column) {
        if constexpr (Operands::kAddsValue) result = fmaf(from.of_value(), value, result);
        *from.result(row, number) = pack1(result);
        if (state.keeps(position)) state.update(position)[number] = column.updates[kToken];
      }
    }
    run_tokens<kToken + 1>(column, chunk, from, state, first_row, base, first, count, number);
  }
}

// Computes a step's tokens in one column of each group of four lanes, and stores their part of the state. `number`: of
// the column, which may lie behind the last.
template <typename Operands>
__device__ __forceinline__ void run_column(Chunk& chunk, const Operands& from, const ReplayState& state, int first_row,
                                           int number) {
  const bool has_column = number < TL_VALUE_DIM;
  Column column = {};
  if (state.length > 0 && has_column) {
    column.for_each([&](int row, float& value) { value = state.element(row * TL_VALUE_DIM + number); });
  }
  for (int base = state.length; base < state.end; base += kChunk) {
    const int count = min_of(kChunk, state.end - base), first = state.past > base ? state.past - base : 0;
    __syncthreads();  // the tokens before these are in the matrix
    load_tokens(chunk, from, state, first_row, base, count);
    __syncthreads();
    weigh_tokens(chunk, first, count);
    __syncthreads();
    run_tokens<0>(column, chunk, from, state, first_row, base, first, count, number);
    if (base + kChunk >= state.end) break;
    __syncthreads();  // queries are read
    weigh_rows(chunk);
    __syncthreads();
    column.advance(chunk);
    column.for_each([&](int, float& value) { value = kept_element(value); });
    if (base + kChunk != state.next_length || !has_column) continue;
    column.for_each([&](int row, float& value) { state.store_element(row * TL_VALUE_DIM + number, value); });
  }
}

// Computes a head of a sequence, unless it has chunks, and stores its tokens: the elements `of_head` of its state, the
// new tokens in `span`.
template <typename Operands>
__device__ __forceinline__ void replay_tokens(const Operands& from, float* of_head, StateSpan span) {
  __shared__ Chunk chunk;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const ReplayState state(of_head, span);
  for (int column = 0; column < TL_VALUE_DIM && !has_chunks(span); column += kColumns) {
    run_column(chunk, from, state, span.first, column + warp * 8 + lane % 8);
  }
  __syncthreads();
  store_tokens<kReplayThreads / 32>(from, state, span);
}

}  // namespace tl
