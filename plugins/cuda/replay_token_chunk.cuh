// The tokens that cuda/replay_tokens.cuh takes together, in shared memory: how they are loaded, and how far the update
// of each changes what later ones find (arXiv 2412.06464, section 3.3).
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
static_assert(kBlocks == 1 || (TL_HAS_CLUSTERS && kBlocks <= 8 && TL_COLUMNS % kColumns == 0));

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

}  // namespace tl
