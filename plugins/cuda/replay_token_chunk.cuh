// The tokens that cuda/replay_tokens.cuh takes together, in shared memory: how they are loaded, and how far the update
// of each changes what later ones find (arXiv 2412.06464, section 3.3).
#pragma once

#include "cuda/replay_rule.cuh"

namespace tl {

constexpr int kBlocks = ceil_div(TL_VALUE_DIM, TL_COLUMNS);  // of a head
constexpr int kGroupColumns = 32, kGroupWarps = 4;           // warps that share the rows of as many columns
constexpr int kColumns = min_of(128, ceil_div(TL_COLUMNS, kGroupColumns) * kGroupColumns);  // of a block at a time
constexpr int kReplayThreads = 4 * kColumns, kWarps = kReplayThreads / 32;
constexpr int kQuads = ceil_div(TL_KEY_DIM, 64);  // groups of four rows that a thread has
constexpr int kRows = kQuads * 64;                // of shared memory; rows beyond the state are zero
constexpr int kPairLanes = 8;                     // that multiply a pair of tokens
constexpr bool kDecaysByRow = TL_DECAY_DIM > 1;
// Whether whole vectors of four elements are copied.
constexpr bool kCopiesKeys = TL_KEY_DIM % 4 == 0 && kKeysAt % 4 == 0;
constexpr bool kCopiesUpdates = TL_VALUE_DIM % 4 == 0 && kUpdatesAt % 4 == 0;
constexpr bool kCopiesDecays = kDecaysByRow && TL_DECAY_DIM % 4 == 0 && kDecaysAt % 4 == 0;
#if TL_PREFETCHES
constexpr int kMatrixPieces = kKeysAt / 4;  // of 16 bytes
// The last words of a state, which are copied as they are: decays, unless they are rows, and the length.
constexpr int kTailAt = kDecaysByRow ? kLengthAt : kDecaysAt, kTailPieces = ceil_div(kLengthAt + 1 - kTailAt, 4);
#endif
static_assert(TL_KEY_DIM <= 256 && (TL_DECAY_DIM == 1 || TL_DECAY_DIM == TL_KEY_DIM));
static_assert(kBlocks == 1 || (kBlocks <= 8 && TL_COLUMNS % kColumns == 0));

// A barrier of the threads that have columns.
__device__ __forceinline__ void sync_columns() {
#if TL_PREFETCHES
  asm volatile("bar.sync 1, %0;" ::"n"(kReplayThreads) : "memory");
#else
  __syncthreads();
#endif
}

// The tokens of a chunk, in shared memory.
struct Chunk {
  float4 key_quads[kChunk * kRows / 4];
  float4 query_quads[kChunk * kRows / 4];      // and then the factors of updates, see weigh_rows()
  float4 update_quads[kChunk * kColumns / 4];  // before a new token is computed, its value is in their place
  float4 decay_quads[ceil_div(kChunk * TL_DECAY_DIM, 4)];  // logarithms
  float2 found[kGroupWarps][kColumns];   // what each of the warps that share rows finds for a key and a query
  float totals[kChunk * TL_DECAY_DIM];   // sums of decays from the beginning of the chunk up to each token
  float key_weights[kChunk * kChunk];    // how far the update of a token changes what a later key finds
  float query_weights[kChunk * kChunk];  // and what a query finds, that of the token itself included
  float factors[kChunk];                 // of values in updates
  float left[kChunk], left_of_matrix;    // what is left of an update, and of the matrix, at the end of a whole chunk
#if TL_PREFETCHES
  float4 tail_quads[kTailPieces];  // the last words of the state, as they were copied
#endif

  __device__ __forceinline__ float* key(int token) { return reinterpret_cast<float*>(key_quads) + token * kRows; }
  __device__ __forceinline__ float* query(int token) { return reinterpret_cast<float*>(query_quads) + token * kRows; }
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
#if TL_PREFETCHES
  __device__ __forceinline__ float length_in_tail() const {
    return reinterpret_cast<const float*>(tail_quads)[kLengthAt - kTailAt];
  }
  __device__ __forceinline__ float decay_in_tail(int position) const {
    return reinterpret_cast<const float*>(tail_quads)[position % kSlots];
  }
#endif
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

// Requests the tokens from position `base` on that are in the state, `first` of them: keys, decays by row, and the
// updates of the columns from `column` on.
__device__ __forceinline__ void request_stored_rows(Chunk& chunk, const ReplayState& state, int base, int first,
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
}

// Requests the same, and returns a decay that the thread stores by store_decay().
__device__ __forceinline__ float request_stored_tokens(Chunk& chunk, const ReplayState& state, int base, int first,
                                                       int column) {
  request_stored_rows(chunk, state, base, first, column);
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

// What a warp loads of a new token: its key, its query, its decays and its factor, or its values, by kind. They are
// requested early, and stored once they are needed.
constexpr int kTokenParts = 4;
struct TokenPart {
  static constexpr int kDecaysOfLane = ceil_div(TL_DECAY_DIM, 32), kValuesOfLane = kColumns / 32;

  u16 bits[max_of(kKeyOfLane, max_of(kDecaysOfLane, kValuesOfLane))], factor;

  // Requests part `kind` of the token in row `row`; values of the columns from `column` on.
  template <typename Operands>
  __device__ __forceinline__ void request(const Operands& from, u64 row, int kind, int column) {
    const int lane = threadIdx.x % 32;
    if (kind == 0) {
      request_vector<false>(from, row, bits);
    } else if (kind == 1) {
      request_vector<true>(from, row, bits);
    } else if (kind == 2) {
#pragma unroll
      for (int j = 0; j < kDecaysOfLane; ++j) {
        if (j * 32 + lane < TL_DECAY_DIM) bits[j] = from.decay_bits(row, j * 32 + lane);
      }
      factor = from.factor_bits(row);
    } else {
#pragma unroll
      for (int j = 0; j < kValuesOfLane; ++j) {
        const int at = column + j * 32 + lane;
        bits[j] = at < TL_VALUE_DIM ? from.values(row)[at] : 0;
      }
    }
  }

  template <typename Operands>
  __device__ __forceinline__ void store(Chunk& chunk, const Operands& from, int token, int kind) const {
    const int lane = threadIdx.x % 32;
    if (kind == 0) {
      store_vector<false>(from, bits, [&](int at, float x) { chunk.key(token)[at] = x; });
    } else if (kind == 1) {
      store_vector<true>(from, bits, [&](int at, float x) { chunk.query(token)[at] = x; });
    } else if (kind == 2) {
#pragma unroll
      for (int j = 0; j < kDecaysOfLane; ++j) {
        const int at = j * 32 + lane;
        if (at < TL_DECAY_DIM) chunk.decays(token)[at] = from.log_decay(unpack1(bits[j]), at);
      }
      if (lane == 0) chunk.factors[token] = from.factor(unpack1(factor));
    } else {
#pragma unroll
      for (int j = 0; j < kValuesOfLane; ++j) chunk.updates(token)[j * 32 + lane] = unpack1(bits[j]);
    }
  }
};

// Loads the new tokens of a chunk, each of kNumWarps warps some parts of them: this warp part number `first_part`, and
// those that are kNumWarps apart. Values are those of the columns from `column` on.
template <int kNumWarps, typename Operands>
__device__ __forceinline__ void load_new_tokens(Chunk& chunk, const Operands& from, ChunkSpan tokens, int column,
                                                int first_part) {
  for (int i = first_part; i < kTokenParts * (tokens.count - tokens.first); i += kNumWarps) {
    TokenPart part;
    part.request(from, tokens.row + i / kTokenParts, i % kTokenParts, column);
    part.store(chunk, from, tokens.first + i / kTokenParts, i % kTokenParts);
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

// Adds a lane's part of the products of the key of token `other` with the key and the query of token `token`. Rows
// beyond the state are zero.
__device__ __forceinline__ void multiply_pair(Chunk& chunk, int token, int other, int lane, float& of_key,
                                              float& of_query) {
#pragma unroll
  for (int i = 4 * lane; i < kRows; i += 4 * kPairLanes) {
    const float4 a = *reinterpret_cast<const float4*>(chunk.key(other) + i);
    const float4 key = *reinterpret_cast<const float4*>(chunk.key(token) + i);
    const float4 query = *reinterpret_cast<const float4*>(chunk.query(token) + i);
    of_key = fmaf(a.w, key.w, fmaf(a.z, key.z, fmaf(a.y, key.y, fmaf(a.x, key.x, of_key))));
    of_query = fmaf(a.w, query.w, fmaf(a.z, query.z, fmaf(a.y, query.y, fmaf(a.x, query.x, of_query))));
  }
}

// Computes totals, what is left at the end of a whole chunk, and the weights of the tokens from `first` on, by kThreads
// threads; kPairLanes lanes compute some pairs of tokens.
template <int kThreads>
__device__ __forceinline__ void weigh_tokens(Chunk& chunk, int first, int count, int thread) {
  for (int i = thread; kDecaysByRow && i < TL_DECAY_DIM; i += kThreads) {
    float sum = 0.0f;
    for (int token = 0; token < count; ++token) {
      sum += chunk.decays(token)[i];
      chunk.totals[token * TL_DECAY_DIM + i] = sum;
    }
  }
  if (!kDecaysByRow && count == kChunk && thread <= kChunk) {
    float* const left = thread < kChunk ? &chunk.left[thread] : &chunk.left_of_matrix;
    *left = expf(chunk.decay_between(thread < kChunk ? thread : -1, kChunk - 1, 0));
  }
  const int lane = thread % kPairLanes, own = thread / kPairLanes;
  constexpr int kAtOnce = kThreads / kPairLanes;
  for (int begin = 0; begin < (count - first) * kChunk; begin += kAtOnce) {
    const int pair = begin + own, token = first + pair / kChunk, other = pair % kChunk;
    const bool is_pair = token < count && other <= token;
    float of_key = 0.0f, of_query = 0.0f, of_decays = 0.0f;
    if constexpr (kDecaysByRow) {
      for (int i = lane; is_pair && i < TL_KEY_DIM; i += kPairLanes) {
        const float key = chunk.key(other)[i] * expf(chunk.decay_between(other, token, i));
        of_key = fmaf(key, chunk.key(token)[i], of_key);
        of_query = fmaf(key, chunk.query(token)[i], of_query);
      }
    } else {
      if (is_pair) multiply_pair(chunk, token, other, lane, of_key, of_query);
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

// Puts into the place of queries by how much the update of each token changes each row of the matrix, if these decay
// each by itself.
__device__ __forceinline__ void weigh_rows(Chunk& chunk) {
  for (int i = threadIdx.x; i < kRows; i += kReplayThreads) {
    float sum = 0.0f;
    for (int token = kChunk - 1; token >= 0; --token) {
      chunk.query(token)[i] = i < TL_KEY_DIM ? chunk.key(token)[i] * expf(sum) : 0.0f;
      if (i < TL_KEY_DIM) sum += chunk.decays(token)[i];
    }
  }
}

}  // namespace tl
