// Products of 4-bit weights with rows of fixed-point numbers (cuda/fixed_rows.cuh).
#pragma once

#include "cuda/weight_piece.cuh"
#include "cuda/weight_ring.cuh"

namespace tl {

// The tile of a consumer warp: sums over this warp's share of k, for rows lane / 4 and lane / 4 + 8 and every fourth
// token.
template <class Ring, class Product>
struct FixedSums {
  using Rows = FixedRows<Product::kPartK, Ring::kTokens>;
  static constexpr int kTokenTiles = ceil_div(Ring::kTokens, 4);
  static_assert(Ring::kHalves % 2 == 0, "tiles are whole");
  static constexpr int kSliceK = max_of(Ring::kPieceK, min_of(kBlock, 128)), kPieces = kSliceK / Ring::kPieceK;
  // products that share scales and offsets
  static constexpr int kTogether = min_of(kSliceK, max_of(32, kBlock)) / 32;
  float sums[Ring::kTilesPerStage][kTokenTiles][2] = {};

  using Nibbles = NibbleBytes<Ring::kForm>;

  // Adds the products of the stage's first k_size elements.
  __device__ __forceinline__ void add_stage(u32 data, int k_size, const StageRows& x, int warp, int lane) {
    u32 row[kTokenTiles], mask[kTokenTiles];  // row of x, or 16 zero bytes past the last token
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      const int token = t * 4 + lane / 8;
      const bool present = token < Ring::kTokens && (x.present >> token & 1);
      row[t] = present ? x.rows + token * Product::kXPitch + lane % 8 * 16 : x.zeros;
      mask[t] = present ? ~0u : 0u;
    }
    const u32 numbers = x.rows + Ring::kTokens * Product::kXPitch + lane % 4 * 4;
#pragma unroll 1
    for (int k = warp * kSliceK; k < k_size; k += Ring::kTeamWarps * kSliceK) {
      u32 columns[kPieces][kTokenTiles][4];
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          load_words(columns[piece][t], row[t] + ((x.first_k + k + piece * Ring::kPieceK) * 2 & mask[t]));
        }
      }
#pragma unroll
      for (int tile = 0; tile < Ring::kTilesPerStage; ++tile) {
        u32 words[kPieces][4];  // by piece: the first halves of rows 0-7 and 8-15, then the second halves
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          const u32 at = (lane % 16 + tile * kRowsPerTile) * Ring::kPitch + lane / 16 * 16;
          load_matrix_x4(words[piece], data + at + (k + piece * Ring::kPieceK) / 2);
        }
#pragma unroll
        for (int first = 0; first < kPieces * 2; first += kTogether) {
          const int block = (k + first * 32) / kBlock, x_block = (x.first_k + k + first * 32) / Rows::kBlockK;
          add(sums[tile], words, columns, first, data + Ring::number_place(tile, block) + lane / 4 * kNumberBytes,
              numbers + Rows::number(x_block, 0) * 4);
        }
      }
    }
  }

  // Layout of the partial sums: [warp][token][row of the stage].
  __device__ __forceinline__ void put(float* target, int warp, int lane) const {
#pragma unroll
    for (int tile = 0; tile < Ring::kTilesPerStage; ++tile) {
#pragma unroll
      for (int i = 0; i < kTokenTiles * 2; ++i) {
        const int token = i / 2 * 4 + lane % 4, row = tile * kRowsPerTile + lane / 4 + i % 2 * 8;
        if (token < Ring::kTokens)
          target[(warp * Ring::kTokens + token) * Ring::kStageRows + row] = sums[tile][i / 2][i % 2];
      }
    }
  }

 private:
  __device__ __forceinline__ static void load_words(u32 (&to)[4], u32 address) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
  // to += scale * scale of x * (weight @ x as integers) + offset * (sum of x), for kTogether products from `first` on.
  __device__ __forceinline__ static void add(float (&to)[kTokenTiles][2], const u32 (&words)[kPieces][4],
                                             const u32 (&columns)[kPieces][kTokenTiles][4], int first, u32 numbers,
                                             u32 x_numbers) {
    int part[kTokenTiles][4] = {};
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const u32(&word)[4] = words[(first + i) / 2];
      const int half = (first + i) % 2 * 2;
      const u32 a[4] = {Nibbles::low(word[half]), Nibbles::low(word[half + 1]), Nibbles::high(word[half]),
                        Nibbles::high(word[half + 1])};
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        const u32(&column)[4] = columns[(first + i) / 2][t];
        mma_int8(part[t], a, column[half], column[half + 1]);
      }
    }
    float scale[2], offset[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scale[half] = load_number(numbers + half * Ring::kRunBytes);
      if (TL_OFFSETS) offset[half] = load_number(numbers + Ring::kKindBytes + half * Ring::kRunBytes);
    }
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      const float x_scale = load_shared_float(x_numbers + t * 16);
      const float x_sum = TL_OFFSETS ? load_shared_float(x_numbers + Rows::kNumbers * 4 + t * 16) : 0.0f;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float whole = static_cast<float>(part[t][half * 2] * 256 + part[t][half * 2 + 1]);
        to[t][half] += whole * (scale[half] * x_scale);
        if (TL_OFFSETS) to[t][half] += offset[half] * x_sum;
      }
    }
  }
};

}  // namespace tl
