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
// rows of this step alone.
//
// A thread has four successive columns of every 16th group of four rows in registers. Tokens come in chunks that begin
// at multiples of 16 positions (arXiv 2412.06464, section 3.3): the matrix is multiplied by a token's query and key,
// and the tokens of the chunk before it add what they would have changed. At the end of the chunk all its tokens are
// added to the matrix. Chunks begin at the same positions however a sequence is divided into steps, and sums run in
// order, so that it gets the same bits.
#pragma once

#include "cuda/cluster.cuh"
#include "cuda/replay_rule.cuh"

namespace tl {

constexpr int kBlocks = ceil_div(TL_VALUE_DIM, TL_COLUMNS);  // of a head
constexpr int kGroupColumns = 32, kGroupWarps = 4;           // warps that share the rows of as many columns
constexpr int kColumns = min_of(128, ceil_div(TL_COLUMNS, kGroupColumns) * kGroupColumns);  // of a block at a time
constexpr int kReplayThreads = 4 * kColumns, kWarps = kReplayThreads / 32;
constexpr int kBlocksAtOnce = ceil_div(896, kReplayThreads);  // of a multiprocessor, or more
constexpr int kQuads = ceil_div(TL_KEY_DIM, 64);              // groups of four rows that a thread has
constexpr int kRows = kQuads * 64;                            // of shared memory; rows beyond the state are zero
constexpr int kTokenPitch = kRows + 8;  // so that the same rows of four tokens are in different banks
constexpr int kPairLanes = 8;           // that multiply a pair of tokens
constexpr bool kDecaysByRow = TL_DECAY_DIM > 1;
// Whether whole vectors of four elements are copied.
constexpr bool kCopiesKeys = TL_KEY_DIM % 4 == 0 && kKeysAt % 4 == 0;
constexpr bool kCopiesUpdates = TL_VALUE_DIM % 4 == 0 && kUpdatesAt % 4 == 0;
constexpr bool kCopiesDecays = kDecaysByRow && TL_DECAY_DIM % 4 == 0 && kDecaysAt % 4 == 0;
static_assert(TL_KEY_DIM <= 256 && (TL_DECAY_DIM == 1 || TL_DECAY_DIM == TL_KEY_DIM));
static_assert(kBlocks == 1 || (TL_HAS_CLUSTERS && kBlocks <= 8 && TL_COLUMNS % kGroupColumns == 0));

// The tokens of a chunk, in shared memory.
struct Chunk {
  float4 key_quads[kChunk * kTokenPitch / 4];
  float4 query_quads[kChunk * kTokenPitch / 4];  // and then the factors of updates, see weigh_rows()
  float4 update_quads[kChunk * kColumns / 4];    // before a new token is computed, its value is in their place
  float4 decay_quads[ceil_div(kChunk * TL_DECAY_DIM, 4)];  // logarithms
  float2 found[kGroupWarps][kColumns];   // what each of the warps that share rows finds for a key and a query
  float totals[kChunk * TL_DECAY_DIM];   // sums of decays from the beginning of the chunk up to each token
  float key_weights[kChunk * kChunk];    // how far the update of a token changes what a later key finds
  float query_weights[kChunk * kChunk];  // and what a query finds, that of the token itself included
  float factors[kChunk];                 // of values in updates

  __device__ __forceinline__ float* key(int token) { return reinterpret_cast<float*>(key_quads) + token * kTokenPitch; }
  __device__ __forceinline__ float* query(int token) {
    return reinterpret_cast<float*>(query_quads) + token * kTokenPitch;
  }
  __device__ __forceinline__ float* decays(int token) {
    return reinterpret_cast<float*>(decay_quads) + token * TL_DECAY_DIM;
  }
  // The updates of the block's columns.
  __device__ __forceinline__ float* updates(int token) {
    return reinterpret_cast<float*>(update_quads) + token * kColumns;
  }
  __device__ __forceinline__ float total(int token, int row) const {
    return totals[token * TL_DECAY_DIM + (kDecaysByRow ? row : 0)];
  }
  // The logarithm of a row's decays after token `from` up to token `until`. They are added up, because differences of
  // totals lose the digits of small decays behind large ones.
  __device__ __forceinline__ float decay_between(int from, int until, int row) {
    float sum = 0.0f;
    for (int token = until; token > from; --token) sum += decays(token)[row];
    return sum;
  }
};

// Requests kSize elements for each of `count` tokens, of which those of token t are at to(t) and from(t); those from
// `end` on are left out.
template <int kSize, bool kCopies, typename To, typename From>
__device__ __forceinline__ void request_rows(int count, int end, const To& to, const From& from) {
  constexpr int kPiece = kCopies ? 4 : 1, kPieces = kSize / kPiece;
  for (int i = threadIdx.x; i < count * kPieces; i += kReplayThreads) {
    const int token = i / kPieces, at = i % kPieces * kPiece;
    if (at >= end) continue;
    if constexpr (kCopies) {
      copy16(shared_address(to(token) + at), from(token) + at, true);
    } else {
      to(token)[at] = from(token)[at];
    }
  }
}

// The last warp waits for decays: its part of a new token is loaded first.
__device__ __forceinline__ int token_of_decay() { return kReplayThreads - 1 - threadIdx.x; }

// Requests the tokens from position `base` on that are in the state, `first` of them: keys, decays, and the updates of
// the columns from `column` on. Returns a decay that the thread stores by store_decay().
__device__ __forceinline__ float request_stored_tokens(Chunk& chunk, const ReplayState& state, int base, int first,
                                                       int column) {
  request_rows<TL_KEY_DIM, kCopiesKeys>(
      first, TL_KEY_DIM, [&](int token) { return chunk.key(token); },
      [&](int token) { return state.key(base + token); });
  request_rows<kColumns, kCopiesUpdates>(
      first, TL_VALUE_DIM - column, [&](int token) { return chunk.updates(token); },
      [&](int token) { return state.update(base + token) + column; });
  if constexpr (kDecaysByRow) {
    request_rows<TL_DECAY_DIM, kCopiesDecays>(
        first, TL_DECAY_DIM, [&](int token) { return chunk.decays(token); },
        [&](int token) { return state.decay(base + token); });
  }
  copy_commit();
  const int token = token_of_decay();
  return !kDecaysByRow && token < first ? *state.decay(base + token) : 0.0f;
}

__device__ __forceinline__ void store_decay(Chunk& chunk, int first, float decay) {
  if (!kDecaysByRow && token_of_decay() < first) *chunk.decays(token_of_decay()) = decay;
}

// The tokens from position `base` on: `count` of them, of which those from number `first` on are new. The first new one
// is in row `row`.
struct ChunkSpan {
  int first, count;
  u64 row;

  __device__ __forceinline__ ChunkSpan(const ReplayState& state, StateSpan span, int base)
      : count(min_of(kChunk, state.end - base)) {
    first = min_of(count, max_of(0, state.past - base));
    row = static_cast<u64>(span.first + base + first - state.past);
  }
};

// Loads the decays and the factor of a token, by a warp.
template <typename Operands>
__device__ __forceinline__ void load_factors(Chunk& chunk, const Operands& from, u64 row, int token) {
  constexpr int kOfLane = ceil_div(TL_DECAY_DIM, 32);
  const int lane = threadIdx.x % 32;
  float numbers[kOfLane];
#pragma unroll
  for (int j = 0; j < kOfLane; ++j) {
    if (j * 32 + lane < TL_DECAY_DIM) numbers[j] = from.decay_input(row, j * 32 + lane);
  }
  const float factor = from.factor_input(row);
#pragma unroll
  for (int j = 0; j < kOfLane; ++j) {
    const int at = j * 32 + lane;
    if (at < TL_DECAY_DIM) chunk.decays(token)[at] = from.log_decay(numbers[j], at);
  }
  if (lane == 0) chunk.factors[token] = from.factor(factor);
}

// Loads the new tokens of a chunk: each warp loads some keys, queries, decays, or values of the columns from `column`
// on.
template <typename Operands>
__device__ __forceinline__ void load_new_tokens(Chunk& chunk, const Operands& from, ChunkSpan tokens, int column) {
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < 4 * (tokens.count - tokens.first); i += kWarps) {
    const int token = tokens.first + i / 4, what = i % 4;
    const u64 row = tokens.row + i / 4;
    if (what == 0) {
      load_vector<false>(from, row, [&](int at, float x) { chunk.key(token)[at] = x; });
    } else if (what == 1) {
      load_vector<true>(from, row, [&](int at, float x) { chunk.query(token)[at] = x; });
    } else if (what == 2) {
      load_factors(chunk, from, row, token);
    } else {
#pragma unroll
      for (int at = lane; at < kColumns; at += 32) {
        if (column + at < TL_VALUE_DIM) chunk.updates(token)[at] = unpack1(from.values(row)[column + at]);
      }
    }
  }
  if constexpr (kRows > TL_KEY_DIM) {
    constexpr int kBehind = max_of(1, kRows - TL_KEY_DIM);
    for (int i = threadIdx.x; i < tokens.count * kBehind; i += kReplayThreads) {
      const int token = i / kBehind, at = TL_KEY_DIM + i % kBehind;
      chunk.key(token)[at] = chunk.query(token)[at] = 0.0f;
    }
  }
}

// Adds up what kPairLanes successive lanes have.
__device__ __forceinline__ float pair_sum(float of_lane) {
#pragma unroll
  for (int distance = kPairLanes / 2; distance > 0; distance /= 2) {
    of_lane += __shfl_xor_sync(0xffffffffu, of_lane, distance);
  }
  return of_lane;
}

// Computes totals, and the weights of the tokens from `first` on; kPairLanes lanes compute some pairs of tokens.
__device__ __forceinline__ void weigh_tokens(Chunk& chunk, int first, int count) {
  for (int i = threadIdx.x; kDecaysByRow && i < TL_DECAY_DIM; i += kReplayThreads) {
    float sum = 0.0f;
    for (int token = 0; token < count; ++token) {
      sum += chunk.decays(token)[i];
      chunk.totals[token * TL_DECAY_DIM + i] = sum;
    }
  }
  const int lane = threadIdx.x % kPairLanes, own = threadIdx.x / kPairLanes;
  constexpr int kAtOnce = kReplayThreads / kPairLanes;
  for (int begin = 0; begin < (count - first) * kChunk; begin += kAtOnce) {
    const int pair = begin + own, token = first + pair / kChunk, other = pair % kChunk;
    const bool is_pair = token < count && other <= token;
    float of_key = 0.0f, of_query = 0.0f, of_decays = 0.0f;
    for (int i = lane; is_pair && i < TL_KEY_DIM; i += kPairLanes) {
      const float decay = kDecaysByRow ? expf(chunk.decay_between(other, token, i)) : 1.0f;
      const float key = chunk.key(other)[i] * decay;
      of_key = fmaf(key, chunk.key(token)[i], of_key);
      of_query = fmaf(key, chunk.query(token)[i], of_query);
    }
    if constexpr (!kDecaysByRow) {
      for (int i = lane; is_pair && i < kChunk; i += kPairLanes) {
        if (i > other && i <= token) of_decays += *chunk.decays(i);
      }
      of_decays = pair_sum(of_decays);
    }
    of_key = pair_sum(of_key), of_query = pair_sum(of_query);
    if (lane > 0 || !is_pair) continue;
    const float decay = kDecaysByRow ? 1.0f : expf(of_decays);
    chunk.key_weights[token * kChunk + other] = of_key * decay;
    chunk.query_weights[token * kChunk + other] = of_query * decay;
    if (!kDecaysByRow && other == 0) chunk.totals[token] = *chunk.decays(0) + of_decays;
  }
}

// Puts into the place of queries by how much the update of each token changes each row of the matrix.
__device__ __forceinline__ void weigh_rows(Chunk& chunk) {
  for (int i = threadIdx.x; i < kRows; i += kReplayThreads) {
    float sum = 0.0f;
    for (int token = kChunk - 1; token >= 0; --token) {
      chunk.query(token)[i] = i < TL_KEY_DIM ? chunk.key(token)[i] * expf(sum) : 0.0f;
      if (i < TL_KEY_DIM) sum += chunk.decays(token)[kDecaysByRow ? i : 0];
    }
  }
}

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
  static __device__ __forceinline__ int first_column() {
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
    const int column = first_column() + lane() / 8 % 2 + lane() / 16 * 2;
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
      const float4 update = *reinterpret_cast<const float4*>(chunk.updates(token) + first_column());
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
  const int number = first_column + Columns::first_column(), num_columns = TL_VALUE_DIM - number;
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
