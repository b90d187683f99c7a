// Prepares chunks of tokens for cuda/replay_chunks.cuh: rows, norms, decays, and how far a token's update changes what
// later tokens of the chunk find (arXiv 2412.06464, section 3.3). Nothing of it depends on the matrix.
#pragma once

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
constexpr int kKeyPitch = TL_KEY_DIM + 8, kValuePitch = TL_COLUMNS + 8, kWeightPitch = kChunk + 8;
static_assert(kChunk == 16 && TL_DECAY_DIM == 1);
static_assert(TL_KEY_DIM % 16 == 0 && TL_KEY_DIM <= 128 && TL_COLUMNS % 16 == 0 && TL_VALUE_DIM % TL_COLUMNS == 0);

// What is prepared of a chunk. The updates u of its tokens and their results y are, with those s before a token t:
//   own[t] = of_value[t] * value[t] - of_found[t] * (matrix^T key[t]), or the update itself of a token in the state
//   u[t] = own[t] + sum of inverse[t][s] * own[s]
//   y[t] = of_query[t] * (matrix^T query[t]) + sum of seen[t][s] * u[s], that of t included
// and then the matrix is matrix * decay + sum of of_update[t] * key[t] u[t]^T. If what the key of t finds of u[s] is
// found[t][s] * u[s], then I + inverse is the inverse of I + found; both are zero on the diagonal and above.
struct alignas(16) ChunkSlot {
  u16 keys[kParts][kChunk][kKeyPitch];  // the first part of all tokens, and the others of those in the state
  u16 queries[kChunk][kKeyPitch];
  u16 values[kChunk][kValuePitch];
  float inverse[kChunk][kWeightPitch];  // and before it is computed, found, transposed
  float seen[kChunk][kWeightPitch];
  float log_decays[kChunk];
  float of_value[kChunk], of_found[kChunk], of_query[kChunk], of_update[kChunk];
  float decay, padding[3];
};

// Prepares chunks, by a warp.
template <typename Operands>
struct ChunkPreparer {
  const Operands& from;
  const ReplayState& state;
  ChunkSlot& slot;
  int first_row, first_column, lane;

  __device__ __forceinline__ u64 row(int position) const { return static_cast<u64>(first_row + position - state.past); }
  // Requests the rows of the chunk's tokens from `first` to `count`; others are zero.
  template <int kSize, int kPitch, typename RowOf>
  __device__ __forceinline__ void copy_rows(u16 (&to)[kChunk][kPitch], int base, int first, int count,
                                            const RowOf& row_of) const {
    constexpr int kPieces = kSize / 8;
#pragma unroll
    for (int i = lane; i < kChunk * kPieces; i += 32) {
      const int token = i / kPieces, piece = i % kPieces;
      const bool valid = token >= first && token < count;
      const u16* const x = row_of(row(base + (valid ? token : first)));
      copy16(shared_address(&to[token][piece * 8]), x + piece * 8, valid);
    }
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
  // The sum of squares of row lane / 2, which both its lanes get.
  __device__ __forceinline__ float squares(const u16 (&rows)[kChunk][kKeyPitch]) const {
    float sum = 0.0f;
#pragma unroll
    for (int piece = 0; piece < TL_KEY_DIM / 16; ++piece) {
      float x[8];
      unpack8(*reinterpret_cast<const uint4*>(&rows[lane / 2][(piece * 2 + lane % 2) * 8]), x);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(x[i], x[i], sum);
    }
    return sum + __shfl_xor_sync(0xffffffffu, sum, 1);
  }
  // Computes the factors of each token, those of the two tokens of two lanes side by side twice.
  __device__ __forceinline__ void weigh_tokens(int first, int count, float log_decay, float factor, float& key_scale,
                                               float& query_scale) const {
    const int token = lane / 2;
    const bool is_new = token >= first && token < count;
    key_scale = query_scale = 1.0f;
    if constexpr (Operands::kNormalizes) {
      key_scale = from.key_scale(squares(slot.keys[0])), query_scale = from.query_scale(squares(slot.queries));
      if (!is_new) key_scale = 1.0f;
    }
    float until = log_decay, after = log_decay;  // sums up to the token, and from it on
#pragma unroll
    for (int step = 1; step < kChunk; step *= 2) {
      const float before = __shfl_up_sync(0xffffffffu, until, step * 2);
      const float behind = __shfl_down_sync(0xffffffffu, after, step * 2);
      if (token >= step) until += before;
      if (token + step < kChunk) after += behind;
    }
    after = __shfl_down_sync(0xffffffffu, after, 2);
    if (token == kChunk - 1) after = 0.0f;
    if (lane % 2 == 0) {
      const float total = expf(until);
      slot.log_decays[token] = log_decay;
      slot.of_value[token] = is_new ? factor : 0.0f;
      slot.of_found[token] = is_new ? factor * key_scale * total : 0.0f;
      slot.of_query[token] = query_scale * total;
      slot.of_update[token] = key_scale * expf(after);
      if (token == kChunk - 1) slot.decay = total;
    }
  }
  // Multiplies keys and queries by the keys of the chunk.
  __device__ __forceinline__ void multiply(float (&keys)[2][4], float (&queries)[2][4], int parts) const {
    const int token = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll 2
    for (int k = 0; k < TL_KEY_DIM; k += 16) {
      const int at = k + lane / 16 * 8;
      u32 key[4], query[4];
      load_matrix_x4(key, shared_address(&slot.keys[0][token][at]));
      load_matrix_x4(query, shared_address(&slot.queries[token][at]));
      for (int part = 0; part < parts; ++part) {
        u32 other[4];
        load_matrix_x4(other, shared_address(&slot.keys[part][token][at]));
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if constexpr (Operands::kCorrects) mma(keys[n], key, other[n], other[n + 2]);
          mma(queries[n], query, other[n], other[n + 2]);
        }
      }
    }
  }
  // The tokens of a pair whose product the lane has: which find something, and which have changed it before.
  __device__ __forceinline__ int token_of(int half) const { return lane / 4 + half * 8; }
  __device__ __forceinline__ int other_of(int i) const { return i / 2 * 8 + lane % 4 * 2 + i % 2; }
  // Stores how far updates change what tokens of the chunk find.
  __device__ __forceinline__ void weigh_pairs(int first, int parts, float factor, float key_scale,
                                              float query_scale) const {
    float keys[2][4] = {}, queries[2][4] = {};
    multiply(keys, queries, parts);
    // Decays are added up, because differences of totals lose the digits of small ones behind large ones.
    float between[2][4] = {};
#pragma unroll
    for (int at = 1; at < kChunk; ++at) {
      const float decay = slot.log_decays[at];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (at <= token_of(i / 4) && at > other_of(i % 4)) between[i / 4][i % 4] += decay;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = token_of(half);
      const float of_token = __shfl_sync(0xffffffffu, factor * key_scale, token * 2);
      const float of_query = __shfl_sync(0xffffffffu, query_scale, token * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int other = other_of(i);
        const float of_other = __shfl_sync(0xffffffffu, key_scale, other * 2);
        const float decay = other <= token ? expf(between[half][i]) * of_other : 0.0f;
        const bool corrects = Operands::kCorrects && other < token && token >= first;
        slot.inverse[other][token] = corrects ? of_token * keys[i / 2][half * 2 + i % 2] * decay : 0.0f;
        slot.seen[token][other] = of_query * queries[i / 2][half * 2 + i % 2] * decay;
      }
    }
  }
  // Computes the inverse from found by substitution. A lane has a column, and two lanes the same.
  __device__ __forceinline__ void invert() const {
    const int column = lane % kChunk;
    float rows[kChunk];
#pragma unroll
    for (int token = 0; token < kChunk; ++token) rows[token] = token == column ? 1.0f : 0.0f;
#pragma unroll
    for (int other = 0; other < kChunk - 1; ++other) {
      float found[kChunk];
#pragma unroll
      for (int at = (other + 1) / 4 * 4; at < kChunk; at += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&slot.inverse[other][at]);
        found[at] = four.x, found[at + 1] = four.y, found[at + 2] = four.z, found[at + 3] = four.w;
      }
#pragma unroll
      for (int token = other + 1; token < kChunk; ++token) {
        rows[token] = fmaf(-found[token], rows[other], rows[token]);
      }
    }
    __syncwarp();
#pragma unroll
    for (int token = 0; token < kChunk; ++token) {
      if (lane < kChunk) slot.inverse[token][column] = token > column ? rows[token] : 0.0f;
    }
  }
  // Prepares the `count` tokens from position `base` on, of which the `first` are in the state.
  __device__ __forceinline__ void prepare(int base, int first, int count) const {
    copy_rows<TL_KEY_DIM>(slot.keys[0], base, first, count, [&](u64 at) { return from.key(at); });
    copy_rows<TL_KEY_DIM>(slot.queries, base, first, count, [&](u64 at) { return from.query(at); });
    copy_rows<TL_COLUMNS>(slot.values, base, first, count, [&](u64 at) { return from.values(at) + first_column; });
    copy_commit();
    const int token = lane / 2, position = base + token;
    float log_decay = 0.0f, factor = 0.0f, key_scale, query_scale;
    if (token < first) log_decay = *state.decay(position);
    if (token >= first && token < count)
      log_decay = from.log_decay(row(position), 0), factor = from.factor(row(position));
    copy_wait<0>();
    __syncwarp();
    const int parts = first > 0 ? kParts : 1;
    if (first > 0) {
      split_keys(base, first);
      __syncwarp();
    }
    weigh_tokens(first, count, log_decay, factor, key_scale, query_scale);
    __syncwarp();
    weigh_pairs(first, parts, factor, key_scale, query_scale);
    if constexpr (Operands::kCorrects) {
      __syncwarp();
      invert();
    }
  }
};

}  // namespace tl
