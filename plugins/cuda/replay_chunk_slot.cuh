// Prepares chunks of tokens for cuda/replay_chunks.cuh: rows, norms, decays, and how far a token's update changes what
// later tokens of the chunk find (arXiv 2412.06464, section 3.3). Nothing of it depends on the matrix.
#pragma once

#include "cuda/cluster.cuh"
#include "cuda/replay_rule.cuh"

namespace tl {

constexpr int kChunkSlots = TL_CHUNK_SLOTS;
constexpr int kGroups = TL_COLUMNS / 16;               // groups of columns
constexpr int kHalves = TL_KEY_DIM % 32 == 0 ? 2 : 1;  // warps that divide the rows of a group
constexpr int kColumnWarps = kGroups * kHalves, kReplayThreads = (kColumnWarps + kChunkSlots) * 32;
constexpr int kBlocksAtOnce = 512 / kReplayThreads;  // of a multiprocessor: so threads have 128 registers or more
constexpr int kBlocks = TL_VALUE_DIM / TL_COLUMNS;   // of a head
constexpr int kKeyTiles = TL_KEY_DIM / 8 / kHalves;  // fragments of a warp's part of the matrix
constexpr int kParts = 3;                            // of 16 bits, of a float32 key
constexpr int kSharers = TL_HAS_CLUSTERS && kBlocks % 2 == 0 ? 2 : 1;  // blocks that prepare chunks for each other
constexpr int kKeyPitch = TL_KEY_DIM + 8, kValuePitch = TL_COLUMNS + 8, kWeightPitch = kChunk + 8;
static_assert(kChunk == 16 && TL_DECAY_DIM == 1);
static_assert(TL_KEY_DIM % 16 == 0 && TL_KEY_DIM <= 128 && TL_COLUMNS % 16 == 0 && TL_VALUE_DIM % TL_COLUMNS == 0);
static_assert(kChunkSlots % kSharers == 0);

// The block of a cluster that prepares what is in a slot: each has some of the warps that share a scheduler.
__device__ __forceinline__ int owner_of(int slot) { return slot * kSharers / kChunkSlots; }

// Numbers of a token.
enum { kOfValue, kOfFound, kOfQuery, kOfUpdate, kTokenNumbers };

// What is prepared of a chunk. The updates u of its tokens and their results y are, with those s before a token t:
//   own[t] = of_value[t] * value[t] - of_found[t] * (matrix^T key[t]), or the update itself of a token in the state
//   u[t] = own[t] + sum of inverse[t][s] * own[s]
//   y[t] = of_query[t] * (matrix^T query[t]) + sum of seen[t][s] * own[s], that of t included
// and then the matrix is matrix * decay + sum of of_update[t] * key[t] u[t]^T; of_value and so on are numbers of
// tokens. If what the key of t finds of u[s] is found[t][s] * u[s], then I + inverse is the inverse of I + found; both
// are zero on the diagonal and above. What the query of t finds of updates, times I + inverse, is seen.
struct alignas(16) ChunkSlot {
  u16 keys[kParts][kChunk][kKeyPitch];  // the first part of all tokens, and the others of those in the state
  u16 queries[kChunk][kKeyPitch];
  u16 values[kChunk][kValuePitch];
  float inverse[kChunk][kWeightPitch], seen[kChunk][kWeightPitch];
  float log_decays[kChunk];
  float half_sums[kChunk];  // of log_decays: behind the token in the first half of the chunk, up to it in the second
  float of_tokens[kTokenNumbers][kChunk];
  float decay, padding[3];
};

// What the decay and the factor of a token are computed from.
struct GivenFactors {
  float of_decay, of_factor;  // of a new token
  float stored_decay;         // of one in the state
};

// Prepares chunks, by a warp.
template <typename Operands>
struct ChunkPreparer {
  static constexpr bool kMultipliesKeys = Operands::kCorrects || Operands::kNormalizes;

  const Operands& from;
  const ReplayState& state;
  ChunkSlot& slot;
  int first_row, first_column, lane;

  __device__ __forceinline__ u64 row(int position) const { return static_cast<u64>(first_row + position - state.past); }
  // Requests the rows of the chunk's tokens from `first` to `count`, or kAll; others are zero.
  template <bool kAll, int kSize, int kPitch, typename RowOf>
  __device__ __forceinline__ void copy_rows(u16 (&to)[kChunk][kPitch], int base, int first, int count,
                                            const RowOf& row_of) const {
    constexpr int kPieces = kSize / 8;
    const u64 pitch = row_of(1) - row_of(0);
    if constexpr (32 % kPieces == 0) {
      // A lane's pieces lie at constant distances.
      constexpr int kTokens = min_of(kChunk, 32 / kPieces);  // at a time
      const int token = lane / kPieces;
      if (kTokens * kPieces < 32 && token >= kTokens) return;
      const u16* const x = row_of(row(base) + token) + lane % kPieces * 8;
      const u32 target = shared_address(&to[token][lane % kPieces * 8]);
#pragma unroll
      for (int i = 0; i < kChunk; i += kTokens) {
        copy16(target + i * sizeof(to[0]), x + i * pitch, kAll || (token + i >= first && token + i < count));
      }
    } else {
      for (int i = lane; i < kChunk * kPieces; i += 32) {
        const int token = i / kPieces, at = i % kPieces * 8;
        copy16(shared_address(&to[token][at]), row_of(row(base) + token) + at, token >= first && token < count);
      }
    }
  }
  template <bool kAll>
  __device__ __forceinline__ void copy_chunk(int base, int first, int count) const {
    copy_rows<kAll, TL_KEY_DIM>(slot.keys[0], base, first, count, [&](u64 at) { return from.key(at); });
    copy_rows<kAll, TL_KEY_DIM>(slot.queries, base, first, count, [&](u64 at) { return from.query(at); });
    copy_rows<kAll, TL_COLUMNS>(slot.values, base, first, count,
                                [&](u64 at) { return from.values(at) + first_column; });
    copy_commit();
  }
  // Divides the keys that are in the state into parts of 16 bits.
  __device__ __forceinline__ void split_keys(int base, int first) const {
    for (int i = lane; i < kChunk * TL_KEY_DIM; i += 32) {
      const int token = i / TL_KEY_DIM, at = i % TL_KEY_DIM;
      float rest = token < first ? state.key(base + token)[at] : 0.0f;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const u16 bits = pack1(rest);
        if (part > 0 || token < first) slot.keys[part][token][at] = bits;
        rest -= unpack1(bits);
      }
    }
  }
  // Multiplies keys and queries by the keys of the chunk, and queries by queries.
  __device__ __forceinline__ void multiply(float (&keys)[2][4], float (&queries)[2][4], float (&squares)[2][4],
                                           int parts) const {
    const int token = lane % 8 + lane / 8 % 2 * 8, column = lane / 16 * 8;
#pragma unroll 4
    for (int k = 0; k < TL_KEY_DIM; k += 16) {
      u32 key[4], query[4];
      load_matrix_x4(key, shared_address(&slot.keys[0][token][k + column]));
      load_matrix_x4(query, shared_address(&slot.queries[token][k + column]));
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        if constexpr (kMultipliesKeys) mma(keys[n], key, key[n], key[n + 2]);
        mma(queries[n], query, key[n], key[n + 2]);
        if constexpr (Operands::kNormalizes) mma(squares[n], query, query[n], query[n + 2]);
      }
    }
    for (int part = 1; part < parts; ++part) {
      for (int k = 0; k < TL_KEY_DIM; k += 16) {
        u32 key[4], query[4], other[4];
        load_matrix_x4(key, shared_address(&slot.keys[0][token][k + column]));
        load_matrix_x4(query, shared_address(&slot.queries[token][k + column]));
        load_matrix_x4(other, shared_address(&slot.keys[part][token][k + column]));
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if constexpr (kMultipliesKeys) mma(keys[n], key, other[n], other[n + 2]);
          mma(queries[n], query, other[n], other[n + 2]);
        }
      }
    }
  }
  // The product of token lane / 2 with itself, which both its lanes get.
  __device__ __forceinline__ float diagonal(const float (&products)[2][4]) const {
    const bool second = lane / 4 % 2 == 1;
    const int token = lane / 2, owner = token % 8 * 4 + token % 8 / 2;
    const float low = __shfl_sync(0xffffffffu, second ? products[0][1] : products[0][0], owner);
    const float high = __shfl_sync(0xffffffffu, second ? products[1][3] : products[1][2], owner);
    return token < 8 ? low : high;
  }
  // Computes the factors of each token, those of the two tokens of two lanes side by side twice.
  __device__ __forceinline__ void weigh_tokens(bool is_new, float log_decay, float factor, float key_scale,
                                               float query_scale) const {
    const int token = lane / 2, place = token % 8;
    float until = log_decay, after = log_decay;  // sums in the token's half of the chunk, up to it and from it on
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
      const float before = __shfl_up_sync(0xffffffffu, until, step * 2);
      const float behind = __shfl_down_sync(0xffffffffu, after, step * 2);
      if (place >= step) until += before;
      if (place + step < 8) after += behind;
    }
    const float first_half = __shfl_sync(0xffffffffu, until, 7 * 2);
    const float second_half = __shfl_sync(0xffffffffu, after, 8 * 2);
    after = __shfl_down_sync(0xffffffffu, after, 2);
    if (place == 7) after = 0.0f;
    const float half_sum = token < 8 ? after : until;
    const float total = expf(token < 8 ? until : first_half + until);
    const float decay = expf(token < 8 ? after + second_half : after);
    if (lane % 2 == 0) {
      slot.log_decays[token] = log_decay;
      slot.half_sums[token] = half_sum;
      slot.of_tokens[kOfValue][token] = is_new ? factor : 0.0f;
      slot.of_tokens[kOfFound][token] = is_new ? factor * key_scale * total : 0.0f;
      slot.of_tokens[kOfQuery][token] = query_scale * total;
      slot.of_tokens[kOfUpdate][token] = key_scale * decay;
      if (token == kChunk - 1) slot.decay = total;
    }
  }
  // The logarithms of the decays between the tokens of the pairs whose products the lane has: lane / 4, and 8 more,
  // which find something, and of each tile two tokens that have changed it before. Decays are added up, because
  // differences of totals lose the digits of small ones behind large ones.
  __device__ __forceinline__ void add_decays(float (&between)[2][2][2]) const {
#pragma unroll
    for (int at = 1; at < 8; ++at) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float log_decay = slot.log_decays[half * 8 + at];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (at <= lane / 4 && at > lane % 4 * 2 + i) between[half][half][i] += log_decay;
        }
      }
    }
    const float2 behind = *reinterpret_cast<const float2*>(&slot.half_sums[lane % 4 * 2]);
    const float until = slot.half_sums[lane / 4 + 8];
    between[1][0][0] = behind.x + until, between[1][0][1] = behind.y + until;
  }
  // Computes how far updates change what keys of the chunk find, and stores that for queries.
  __device__ __forceinline__ void weigh_pairs(int first, const float (&keys)[2][4], const float (&queries)[2][4],
                                              float factor, float key_scale, float query_scale,
                                              float (&found)[2][2][2]) const {
    float between[2][2][2] = {};
    add_decays(between);
    float of_other[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      of_other[i / 2][i % 2] = __shfl_sync(0xffffffffu, key_scale, (i / 2 * 8 + lane % 4 * 2 + i % 2) * 2);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = half * 8 + lane / 4;
      const float of_token = __shfl_sync(0xffffffffu, factor * key_scale, token * 2);
      const float of_query = __shfl_sync(0xffffffffu, query_scale, token * 2);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int other = n * 8 + lane % 4 * 2;
        float seen[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float weight = expf(between[half][n][i]) * of_other[n][i];
          const bool corrects = Operands::kCorrects && other + i < token && token >= first;
          found[half][n][i] = corrects ? of_token * keys[n][half * 2 + i] * weight : 0.0f;
          seen[i] = other + i <= token ? of_query * queries[n][half * 2 + i] * weight : 0.0f;
        }
        *reinterpret_cast<float2*>(&slot.seen[token][other]) = make_float2(seen[0], seen[1]);
      }
    }
  }
  // Calls use(found, token, other) for each pair of tokens that the lane has.
  template <typename Use>
  __device__ __forceinline__ void for_each_pair(const float (&found)[2][2][2], const Use& use) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      use(found[i / 4][i / 2 % 2][i % 2], i / 4 * 8 + lane / 4, i / 2 % 2 * 8 + lane % 4 * 2 + i % 2);
    }
  }
  // Computes the inverse, and of what queries find, what they see. Of the equations (I + found) x = e a lane has column
  // `lane` of I as e; of x (I + found) = e it has row `lane` - 16 of what queries find. Backwards, the latter have the
  // form of the former: so all lanes substitute alike, with found transposed and with found backwards.
  __device__ __forceinline__ void substitute(const float (&found)[2][2][2]) const {
    constexpr int kLast = kChunk - 1;
    const bool of_query = lane >= kChunk;
    const int own = lane % kChunk;
    float x[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] = of_query ? slot.seen[own][kLast - i] : i == own ? 1.0f : 0.0f;
    __syncwarp();
    for_each_pair(found, [&](float pair, int token, int other) {
      slot.inverse[other][token] = pair, slot.seen[kLast - token][kLast - other] = pair;
    });
    __syncwarp();
    const float (*const factors)[kWeightPitch] = of_query ? slot.seen : slot.inverse;
#pragma unroll
    for (int solved = 0; solved < kLast; ++solved) {
      float of_rest[kChunk];
#pragma unroll
      for (int i = (solved + 1) / 4 * 4; i < kChunk; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&factors[solved][i]);
        of_rest[i] = four.x, of_rest[i + 1] = four.y, of_rest[i + 2] = four.z, of_rest[i + 3] = four.w;
      }
#pragma unroll
      for (int i = solved + 1; i < kChunk; ++i) x[i] = fmaf(-of_rest[i], x[solved], x[i]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      float& to = of_query ? slot.seen[own][kLast - i] : slot.inverse[i][own];
      to = of_query || i > own ? x[i] : 0.0f;
    }
  }
  // Loads what the decay and the factor of token lane / 2 of the chunk from position `base` on are computed from.
  __device__ __forceinline__ GivenFactors load_factors(int base) const {
    const int position = base + lane / 2;
    const u64 at = row(min_of(max_of(position, state.past), state.end - 1));
    return {unpack1(from.decay_bits(at, 0)), unpack1(from.factor_bits(at)),
            position < state.past ? *state.decay(position) : 0.0f};
  }
  // Loads the rows of the `count` tokens from position `base` on, of which the `first` are in the state.
  __device__ __forceinline__ void request_rows(int base, int first, int count) const {
    if (first == 0 && count == kChunk) {
      copy_chunk<true>(base, first, count);
    } else {
      copy_chunk<false>(base, first, count);
    }
  }
  __device__ __forceinline__ void receive_rows(int base, int first) const {
    copy_wait<0>();
    __syncwarp();
    if (first > 0) {
      split_keys(base, first);
      __syncwarp();
    }
  }
  // Computes what depends on these rows.
  __device__ __forceinline__ void prepare(int base, int first, int count, GivenFactors given) const {
    const bool is_new = lane / 2 >= first && lane / 2 < count;
    const float factor = is_new ? from.factor(given.of_factor) : 0.0f;
    const float log_decay = is_new ? from.log_decay(given.of_decay, 0) : lane / 2 < first ? given.stored_decay : 0.0f;
    receive_rows(base, first);
    float keys[2][4] = {}, queries[2][4] = {}, squares[2][4] = {};
    multiply(keys, queries, squares, first > 0 ? kParts : 1);
    float key_scale = 1.0f, query_scale = 1.0f;
    if constexpr (Operands::kNormalizes) {
      const float of_key = from.key_scale(diagonal(keys));
      key_scale = is_new ? of_key : 1.0f;
      query_scale = from.query_scale(diagonal(squares));
    }
    weigh_tokens(is_new, log_decay, factor, key_scale, query_scale);
    __syncwarp();
    float found[2][2][2];
    weigh_pairs(first, keys, queries, factor, key_scale, query_scale, found);
    if constexpr (Operands::kCorrects) {
      __syncwarp();
      substitute(found);
    }
  }
  // What is prepared besides rows, in bytes.
  static constexpr u32 kPreparedBytes =
      (Operands::kCorrects ? 2 : 1) * 4 * kChunk * kChunk + 4 * (kTokenNumbers * kChunk + 1);
  // Sends that to the slot of another block, whose barrier `full` waits for the bytes.
  __device__ __forceinline__ void send(u32 full, int rank) const {
#if TL_HAS_CLUSTERS
    static_assert(kTokenNumbers * kChunk == 64 && kChunk == 16);
    const auto send_two = [&](const float* x) {
      send_to_block(shared_address(x), full, rank, *reinterpret_cast<const float2*>(x));
    };
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kChunk; i += 4) {
      if constexpr (Operands::kCorrects) send_two(&slot.inverse[i + lane / 8][lane % 8 * 2]);
      send_two(&slot.seen[i + lane / 8][lane % 8 * 2]);
    }
    send_two(&slot.of_tokens[lane / 8][lane % 8 * 2]);
    if (lane == 0) send_to_block(shared_address(&slot.decay), full, rank, slot.decay);
#endif
  }
};

}  // namespace tl
