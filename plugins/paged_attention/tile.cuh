// Attention of some octets of query rows to 32 keys at a time by one warp: mma.sync with online softmax.
//
// Rows are the query heads that share a KV head, of one token or of a few. As they are few, they are the 8-wide
// operand, and keys (for scores) or elements of a value (for the output) the 16-wide one (swap-AB): a product computes
// transposed scores [keys, rows] or a transposed output [dim, rows]. A lane holds rows 2 * (lane % 4) and + 1 of every
// eight and, of each 16 keys or elements, lane / 4 and + 8.
//
// In a cache of bytes, a register of ldmatrix has four elements instead of two, which are converted to float16. For
// keys they are neighbours, so that a lane has elements 4 * (lane % 4) .. + 3 of every 16; queries are loaded to match.
// For values they are two neighbours of two keys each: of each 16 elements a lane then holds 2 * (lane / 4) and + 1.
// Keys may have 16 bits beside values of bytes: each product has its own type.
#pragma once

#include "cuda/softmax.cuh"
#include "paged_attention/cache.cuh"
#include "paged_attention/convert.cuh"
#include "paged_attention/score_scale.cuh"

namespace tl {

constexpr int kTileShift = 5, kTileTokens = 1 << kTileShift;
constexpr u32 kMinusInfinity = 0xff800000;
// Weights may reach 2 to this power before the output is rescaled: sums are float32, and float16 holds such weights.
constexpr float kMaximumSlack = 8.0f;

__device__ __forceinline__ float column_max(float x) {
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

__device__ __forceinline__ float column_sum(float x) {
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// The part of a tile that belongs to eight rows.
template <int kDim>
struct RowOctet {
  float output[kDim / 16][4];
  float maximum[2], sum[2];  // maximum of scaled scores, at most kMaximumSlack too small; sum over this lane's keys
                             // only

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) output[i][0] = output[i][1] = output[i][2] = output[i][3] = 0.0f;
    maximum[0] = maximum[1] = kNoMaximum;
    sum[0] = sum[1] = 0.0f;
  }
  // Called after all keys that a warp sees: adds one more key for each row of a head, with the head's score and value
  // zero. Row 0 is number `first` of the pair. Sums stay finite, because they may be combined with other parts.
  template <class Rows>
  __device__ __forceinline__ void add_sinks(const float* sinks, int first, const Rows& pair, ScoreScale scale,
                                            int lane) {
    constexpr float kMost = 64.0f;  // a sink adds at most 2^kMost to a sum
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = first + lane % 4 * 2 + j;
      const float exponent = pair.is_of_head(row) ? scale.exponent_of(sinks[Rows::head(row)]) : kNoMaximum;
      const float next = fmaxf(maximum[j], exponent - kMost), correction = exp2_fast(maximum[j] - next);
      maximum[j] = next;
      sum[j] = sum[j] * correction + (lane < 4 ? exp2_fast(exponent - next) : 0.0f);
#pragma unroll
      for (int i = j; i < kDim / 4; i += 2) output[i / 4][i % 4] *= correction;
    }
  }

  // Raises the maxima if a score exceeds them by more than the slack.
  __device__ __forceinline__ void raise(const float (&scores)[2][4], float scale) {
    float now[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      now[j] = fmaxf(fmaxf(scores[0][j], scores[0][j + 2]), fmaxf(scores[1][j], scores[1][j + 2])) * scale;
    }
    const bool exceeds = now[0] > maximum[0] + kMaximumSlack || now[1] > maximum[1] + kMaximumSlack;
    if (!__any_sync(0xffffffffu, exceeds)) return;
    float correction[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float next = fmaxf(maximum[j], column_max(now[j]));
      correction[j] = exp2_fast(maximum[j] - next);
      maximum[j] = next;
      sum[j] *= correction[j];
    }
#pragma unroll
    for (int i = 0; i < kDim / 4; ++i) output[i / 4][i % 4] *= correction[i % 2];
  }
  // Converts scores of 32 keys to weights for the product with their values.
  __device__ __forceinline__ void weigh(float (&scores)[2][4], u32 (&weights)[2][2], float scale) {
    raise(scores, scale);
#pragma unroll
    for (int half = 0; half < 4; ++half) {
      float* pair = scores[half / 2] + half % 2 * 2;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        pair[j] = exp2_fast(pair[j] * scale - maximum[j]);
        sum[j] += pair[j];
      }
      const u32 packed = kHalfWeights ? pack2_float16(pair[0], pair[1]) : pack2(pair[0], pair[1]);
      weights[half / 2][half % 2] = transpose_matrix(packed);
    }
  }
};

// Rows says where rows lie, of which head they are (place() and head()), which keys they see, and where queries are
// kept (Query): see decode_rows.cuh.
template <int kDim, int kOctets, class Rows>
struct TileState {
  using Keys = CacheLayout<kDim, kKeyItemBytes>;
  typename Rows::Query query;
  RowOctet<kDim> rows[kOctets];

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) rows[o].reset();
  }
  // Row r is at Rows::place(from, 0, r). Nothing is made of the results of rows past num_rows, but all rows of a warp
  // raise their maxima together, so that the last bits of a result need queries that are the same each time.
  __device__ __forceinline__ void load_query(const u16* from, const Rows& pair, int lane) {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      if (!pair.is_there(o * 8 + lane / 4)) {
        query.skip(o);
        continue;
      }
      const u16* row = Rows::place(from, o * 8, lane / 4);
      const u32* words = reinterpret_cast<const u32*>(row) + lane % 4 * (kByteKeys ? 2 : 1);
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
        const int at = kByteKeys ? k / 2 * 16 + k % 2 : k * 8, behind = kByteKeys ? 8 : 4;
        query.put(o, k, words[at], words[at + behind]);
      }
    }
  }

  __device__ __forceinline__ void add_sinks(const float* sinks, const Rows& pair, ScoreScale scale, int lane) {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      rows[o].add_sinks(sinks, o * 8, pair, scale, lane);
    }
  }

  // The index of the values' element that a lane's output[d / 2][d % 2 * 2 ..] sums.
  __device__ __forceinline__ static int element(int d, int lane) {
    return kByteValues ? d / 2 * 16 + lane / 4 * 2 + d % 2 : d * 8 + lane / 4;
  }

  // Attends to 32 tokens, of which rows see some. `keys`, `values`: shared-memory addresses, laid out as in the cache.
  // Only the first kUsed octets have rows.
  template <int kUsed = kOctets>
  __device__ __forceinline__ void add(u32 keys, u32 values, const typename Rows::Seen& seen, ScoreScale scale,
                                      int lane) {
    // Lanes 0-7 address the first 8x8 matrix of four, 8-15 the second, and so on.
    const u32 key_row = keys + lane / 8 % 2 * Keys::kGroupBytes + Keys::row_bytes(lane % 8, lane / 16);
    const ByteRows byte_values(values, lane);
    ValueLoads<kUsed> loads(values, lane);
    float scores[kUsed][2][4] = {};
    if constexpr (kByteKeys) {
      multiply_keys_of_bytes(key_row, scores);
    } else {
      multiply_keys(key_row, scores);
    }
    u32 weights[kUsed][2][2];
    if constexpr (kByteValues) {
      weigh(scores, weights, seen, scale, lane);
      multiply_values_of_bytes(byte_values, weights);
    } else {
      loads.load(0);
      weigh(scores, weights, seen, scale, lane);
      multiply_values(loads, weights);
    }
  }

  template <int kUsed>
  __device__ __forceinline__ void weigh(float (&scores)[kUsed][2][4], u32 (&weights)[kUsed][2][2],
                                        const typename Rows::Seen& seen, ScoreScale scale, int lane) {
#pragma unroll
    for (int o = 0; o < kUsed; ++o) {
      seen.tune(scores[o], o, lane);
      scale.cap(scores[o]);
      seen.mask(scores[o], o, lane);
      rows[o].weigh(scores[o], weights[o], scale.factor());
    }
  }

  // Adds the products of queries and keys to scores. A load of four 8x8 matrices gives 16 keys by 32 elements.
  template <int kUsed>
  __device__ __forceinline__ void multiply_keys_of_bytes(u32 key_row, float (&scores)[kUsed][2][4]) const {
    static_assert(kDim % 32 == 0);
#pragma unroll
    for (int k = 0; k < kDim / 32; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32 bytes[4], a[2][4];
        load_matrix_x4(bytes, Keys::pair_address(key_row, k) + half * 2 * Keys::kGroupBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) convert_bytes(bytes[i], a[0][i], a[1][i]);
#pragma unroll
        for (int o = 0; o < kUsed; ++o) {
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            const uint2 words = query.get(o, k * 2 + part);
            mma(scores[o][half], a[part], words.x, words.y);
          }
        }
      }
    }
  }

  // Where a lane loads values of bytes: even and odd pieces of a row.
  struct ByteRows {
    using Layout = CacheLayout<kDim, 1>;
    u32 pieces[2];

    __device__ __forceinline__ ByteRows(u32 values, int lane)
        : pieces{values + lane / 8 * Layout::kGroupBytes + Layout::row_bytes(lane % 8, 0),
                 values + lane / 8 * Layout::kGroupBytes + Layout::row_bytes(lane % 8, 1)} {}
  };

  // Adds the products of weights and values to the output. A load of four 8x8 matrices gives 32 values by 16 elements.
  template <int kUsed>
  __device__ __forceinline__ void multiply_values_of_bytes(const ByteRows& values, const u32 (&weights)[kUsed][2][2]) {
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      u32 bytes[4], a[2][4];  // keys 0-15 and 16-31: even elements, odd elements, and both for the later eight keys
      load_matrix_x4_transposed(bytes, ByteRows::Layout::pair_address(values.pieces[d % 2], d / 2));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        convert_bytes(__byte_perm(bytes[i], 0, 0x3120), a[i / 2][i % 2 * 2], a[i / 2][i % 2 * 2 + 1]);
      }
#pragma unroll
      for (int o = 0; o < kUsed; ++o) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          mma<true>(rows[o].output[d], a[half], weights[o][half][0], weights[o][half][1]);
        }
      }
    }
  }

  // Loads of 16-bit elements run ahead of the products that use them, because the latency of one warp matters: as many
  // as registers allow beside kUsed octets.
  static constexpr int kSteps = kDim / 16;
  __device__ __forceinline__ static constexpr int batch(int used) {
    return min_of(kSteps, kDim > 256 ? 1 : used > 2 ? 2 : 4);
  }

  // Adds the products of queries and keys to scores.
  template <int kUsed>
  __device__ __forceinline__ void multiply_keys(u32 key_row, float (&scores)[kUsed][2][4]) const {
    constexpr int kBatch = batch(kUsed);
    u32 a[kBatch][2][4];  // both halves of the tile
#pragma unroll
    for (int first = 0; first < kSteps; first += kBatch) {
#pragma unroll
      for (int i = 0; i < kBatch * 2; ++i) {
        const u32 at = Keys::pair_address(key_row, first + i / 2) + i % 2 * 2 * Keys::kGroupBytes;
        if (first + i / 2 < kSteps) load_matrix_x4(a[i / 2][i % 2], at);
      }
#pragma unroll
      for (int i = 0; i < kBatch * 2 * kUsed; ++i) {
        const int k = i / 2 / kUsed, o = i / 2 % kUsed;
        if (first + k >= kSteps) break;
        const uint2 words = query.get(o, first + k);
        mma(scores[o][i % 2], a[k][i % 2], words.x, words.y);
      }
    }
  }

  // Some 16-bit elements of all values of a tile, for both halves of its keys.
  template <int kUsed>
  struct ValueLoads {
    static constexpr int kBatch = batch(kUsed);
    using Layout = CacheLayout<kDim>;
    u32 value_row, a[kBatch][2][4];

    __device__ __forceinline__ ValueLoads(u32 values, int lane)
        : value_row(values + lane / 16 * Layout::kGroupBytes + Layout::row_bytes(lane % 8, lane / 8 % 2)) {}
    __device__ __forceinline__ void load(int first) {
#pragma unroll
      for (int i = 0; i < kBatch * 2; ++i) {
        const u32 at = Layout::pair_address(value_row, first + i / 2) + i % 2 * 2 * Layout::kGroupBytes;
        if (first + i / 2 < kSteps) load_matrix_x4_transposed(a[i / 2][i % 2], at);
      }
    }
  };

  // Adds the products of weights and values to the output; the first values have been loaded.
  template <int kUsed>
  __device__ __forceinline__ void multiply_values(ValueLoads<kUsed>& loads, const u32 (&weights)[kUsed][2][2]) {
    constexpr int kBatch = batch(kUsed);
#pragma unroll
    for (int first = 0; first < kSteps; first += kBatch) {
      if (first > 0) loads.load(first);
#pragma unroll
      for (int i = 0; i < kBatch * 2 * kUsed; ++i) {
        const int d = i % kBatch, half = i / kBatch % 2, o = i / kBatch / 2;
        if (first + d >= kSteps) continue;
        mma(rows[o].output[first + d], loads.a[d][half], weights[o][half][0], weights[o][half][1]);
      }
    }
  }
};

}  // namespace tl
