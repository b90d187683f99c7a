// Products of weights with rows of 16-bit elements or bytes, for a GEMV kernel: what a warp loads from a stage, and its
// sums.
#pragma once

#include "cuda/weight_piece.cuh"
#include "cuda/weight_ring.cuh"

namespace tl {

// Where this lane loads x from: a row of a stage or, past the last token, 16 zero bytes with `mask` 0.
template <class Ring>
struct XRows {
  // For weights in the layout pairs8, a lane takes eight neighbouring elements; otherwise, what ldmatrix gives it.
  static constexpr bool kInWords = is_short_integer(Ring::kForm);
  static constexpr int kCount = kInWords ? Ring::kTokenTiles : 1;
  u32 row[kCount], mask[kCount];

  // For ldmatrix, lanes 0-15 address both halves of a product for tokens 0-7, lanes 16-31 those for tokens 8-15.
  __device__ __forceinline__ XRows(u32 x, u32 zeros, u32 pitch, u32 rows, int lane) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int token = kInWords ? i * 8 + lane / 4 : lane / 16 * 8 + lane % 8;
      const bool present = token < Ring::kTokens && (rows >> token & 1);
      row[i] = present ? x + token * pitch + (kInWords ? lane % 4 * 16 : lane / 8 % 2 * 16) : zeros;
      mask[i] = present ? ~0u : 0u;
    }
  }
  __device__ __forceinline__ u32 at(int i, int byte) const { return row[i] + (byte & mask[i]); }
};

// What a warp multiplies at a time: a piece of each tile of the stage, the rows of x, and the scales and offsets of the
// blocks.
template <class Ring>
struct Operands {
  using Piece = WeightPiece<Ring>;
  // How many products share scales and offsets, and the number of such groups.
  static constexpr int kTogether = kBlock == 0 ? Piece::kProducts : min_of(Piece::kProducts, kBlock / Ring::kProductK);
  static constexpr int kGroups = kBlock == 0 ? 0 : Piece::kProducts / kTogether;
  Piece pieces[Ring::kTilesPerStage];
  u32 x[Piece::kProducts][4];
  u32 number_bits[max_of(1, kNumberKinds)][Ring::kTilesPerStage][2][max_of(1, kGroups)];

  // Whether a tile of a stage has both its halves.
  __device__ __forceinline__ static constexpr bool is_whole(int tile) { return tile * 2 + 1 < Ring::kHalves; }
  __device__ __forceinline__ float number(int kind, int tile, int half, int group) const {
    return number_of(number_bits[kind][tile][half][group]);
  }

  // Applies raised_row() to rows of x that are streamed with the weights; other rows were raised when they were stored.
  __device__ __forceinline__ void raise_rows() {
#pragma unroll
    for (int i = 0; i < Piece::kProducts * 2 * Ring::kTokenTiles; ++i) {
      u32& pair = x[i / (2 * Ring::kTokenTiles)][i % (2 * Ring::kTokenTiles)];
      if constexpr (Ring::kXTravels) pair = raised_row(pair);
    }
  }

  // Loads the elements of a stage from `k` on.
  __device__ __forceinline__ void load(u32 data, int k, const XRows<Ring>& rows, int lane) {
    const u32 piece = data + k * Ring::kWeightBits / 8;
#pragma unroll
    for (int tile = 0; tile < Ring::kTilesPerStage; ++tile) {
      const u32 first = piece + tile * kRowsPerTile * Ring::kPitch;
      if (is_whole(tile)) {
        pieces[tile].load(first + Piece::place(lane));
      } else {
        pieces[tile].load_half(first + Piece::half_place(lane));
      }
#pragma unroll
      for (int i = 0; i < kNumberKinds * 2 * kGroups; ++i) {
        const int kind = i / (2 * kGroups), half = i / kGroups % 2, group = i % kGroups;
        const int block = (k + group * kTogether * Ring::kProductK) / max_of(1, kBlock);
        const u32 run = data + Ring::kNumberOffset + kind * Ring::kKindBytes + (tile * 2 + half) * Ring::kRunBytes;
        if (half == 1 && !is_whole(tile)) continue;
        number_bits[kind][tile][half][group] = load_number_bits(run + block * kBlockBytes + lane / 4 * kNumberBytes);
      }
    }
    if constexpr (XRows<Ring>::kInWords) {
#pragma unroll
      for (int t = 0; t < Ring::kTokenTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          u32(&first)[4] = x[half * 2], (&second)[4] = x[half * 2 + 1];
          asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(first[2 * t]), "=r"(first[2 * t + 1]), "=r"(second[2 * t]), "=r"(second[2 * t + 1])
                       : "r"(rows.at(t, k * 2 + half * 64))
                       : "memory");
        }
      }
    } else {
#pragma unroll
      for (int p = 0; p < Piece::kProducts; ++p) {
        const u32 at = rows.at(0, (k + p * Ring::kProductK) * Ring::kItemBytes);
        if constexpr (Ring::kTokenTiles == 2) {
          load_matrix_x4(x[p], at);
        } else {
          u32 pair[2];
          load_matrix_x2(pair, at);
          x[p][0] = pair[0], x[p][1] = pair[1];
        }
      }
    }
  }
};

// The tile of a consumer warp: accumulators of kTilesPerStage x kTokenTiles fragments over this warp's share of k.
template <class Ring, class Product>
struct TileSums {
  using Loaded = Operands<Ring>;
  static constexpr int kProducts = Loaded::Piece::kProducts, kTogether = Loaded::kTogether;
  static constexpr u32 kOnes = TL_FP16 ? 0x3c003c00u : 0x3f803f80u;
  using Sum = SumOf<Ring::kRows>;
  Sum sums[Ring::kTilesPerStage][Ring::kTokenTiles][4] = {};
  u32 mask = pair_mask();

  __device__ __forceinline__ static void product(Sum (&to)[Ring::kTokenTiles][4], const u32 (&a)[4],
                                                 const u32 (&b)[4]) {
#pragma unroll
    for (int t = 0; t < Ring::kTokenTiles; ++t) {
      if constexpr (Ring::kRows == RowType::kInt8) {
        mma_int8(to[t], a, b[2 * t], b[2 * t + 1]);
      } else if constexpr (Ring::kRows == RowType::kE4m3) {
        mma_e4m3(to[t], a, b[2 * t], b[2 * t + 1]);
      } else {
        mma(to[t], a, b[2 * t], b[2 * t + 1]);
      }
    }
  }
  // Adds products kFirst to kEnd - 1 to `to`.
  template <int kFirst, int kEnd>
  __device__ __forceinline__ void products(Sum (&to)[Ring::kTokenTiles][4], const Loaded& loaded, int tile) const {
    if constexpr (kFirst < kEnd) {
      u32 a[4];
      loaded.pieces[tile].template convert<kFirst>(a, mask);
      product(to, a, loaded.x[kFirst]);
      products<kFirst + 1, kEnd>(to, loaded, tile);
    }
  }
  // sums += scale * (weight @ x) + offset * (sum of x), for the groups of products from kGroup on.
  template <int kGroup>
  __device__ __forceinline__ void add_groups(const Loaded& loaded,
                                             const Sum (&x_sums)[max_of(1, Loaded::kGroups)][Ring::kTokenTiles][4],
                                             int tile) {
    if constexpr (kGroup < Loaded::kGroups) {
      Sum part[Ring::kTokenTiles][4] = {};
      products<kGroup * kTogether, (kGroup + 1) * kTogether>(part, loaded, tile);
#pragma unroll
      for (int i = 0; i < Ring::kTokenTiles * 4; ++i) {
        if (i % 4 >= 2 && !Loaded::is_whole(tile)) continue;
        Sum& sum = sums[tile][i / 4][i % 4];
        sum += loaded.number(0, tile, i % 4 / 2, kGroup) * part[i / 4][i % 4];
        if (TL_OFFSETS) sum += loaded.number(kNumberKinds - 1, tile, i % 4 / 2, kGroup) * x_sums[kGroup][i / 4][i % 4];
      }
      add_groups<kGroup + 1>(loaded, x_sums, tile);
    }
  }
  __device__ __forceinline__ void add(Loaded& loaded) {
    loaded.raise_rows();
    Sum x_sums[max_of(1, Loaded::kGroups)][Ring::kTokenTiles][4] = {};
    constexpr u32 kOne[4] = {kOnes, kOnes, kOnes, kOnes};
#pragma unroll
    for (int p = 0; p < (TL_OFFSETS ? kProducts : 0); ++p) product(x_sums[p / kTogether], kOne, loaded.x[p]);
#pragma unroll
    for (int tile = 0; tile < Ring::kTilesPerStage; ++tile) {
      if constexpr (kBlock == 0) {
        products<0, kProducts>(sums[tile], loaded, tile);
      } else {
        add_groups<0>(loaded, x_sums, tile);
      }
    }
  }

  // Adds the products of the stage's first k_size elements. Weights in blocks take so many instructions that the next
  // piece is loaded before the current one is multiplied; a piece of 4-bit weights is long enough without that.
  __device__ __forceinline__ void add_stage(u32 data, int k_size, const StageRows& x, int warp, int lane) {
    constexpr int kTurns = ceil_div(Ring::kStageK / Ring::kPieceK, Ring::kTeamWarps);
    // Whether every warp has kTurns pieces of every stage, which then overlap. With more tokens, registers would spill.
    constexpr bool kEven = Ring::kTokenTiles == 1 && Product::kLastK == Ring::kStageK &&
                           Ring::kStageK % (Ring::kPieceK * Ring::kTeamWarps) == 0;
    constexpr int kAhead = kBlock == 0 || Ring::kForm == WeightForm::kE2m1 ? 0 : 1;
    const XRows<Ring> rows(x.rows + x.first_k * Ring::kItemBytes, x.zeros, Product::kXPitch, x.present, lane);
    Loaded loaded[1 + kAhead];
#pragma unroll
    for (int i = 0; i < kTurns + kAhead; ++i) {
      const int k = (warp + i * Ring::kTeamWarps) * Ring::kPieceK,
                before = k - kAhead * Ring::kTeamWarps * Ring::kPieceK;
      if (!kEven && before >= k_size) break;
      if (i < kTurns && (kEven || k < k_size)) loaded[i % (1 + kAhead)].load(data, k, rows, lane);
      if (i >= kAhead) add(loaded[(i - kAhead) % (1 + kAhead)]);
    }
  }

  // Layout of the partial sums: [warp][token][row of the stage].
  __device__ __forceinline__ void put(float* target, int warp, int lane) {
#pragma unroll
    for (int tile = 0; tile < Ring::kTilesPerStage; ++tile) {
#pragma unroll
      for (int i = 0; i < Ring::kTokenTiles * 4; ++i) {
        const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int row = tile * kRowsPerTile + lane / 4 + i % 4 / 2 * 8;
        if (token < Ring::kTokens && (i % 4 < 2 || Loaded::is_whole(tile))) {
          float& to = target[(warp * Ring::kTokens + token) * Ring::kStageRows + row];
          if constexpr (kExactParts) {
            to = part_of(sums[tile][i / 4][i % 4]);
          } else {
            to = static_cast<float>(sums[tile][i / 4][i % 4]) * kSumFactor;
          }
        }
      }
    }
  }
};

}  // namespace tl
