// y = x @ weight.T for at most 16 rows of x: decoding, where the weights are read once and everything else is small.
//
// Bytes moved: the weights, once (N * K * 2, or N * K of bytes); x and y are noise. Floor: those bytes over the memory
// bandwidth. FLOPs (2 * M * N * K) stay far under the tensor cores' rate, so M = 8 costs about what M = 1 costs.
//
// One block per SM streams tiles of 16 rows, or halves of them, of the row-major weights through a ring in shared
// memory (weight_ring.cuh). Eight warps consume, or more (kConsumerWarps): they take the pieces of a stage in turn, 32
// bytes of 16 rows, through ldmatrix into mma.sync, with the (zero-padded) rows of x as the 8-wide operand, and the
// partial sums of all meet in shared memory at the end of a tile, in a fixed order: a row's result does not depend on
// the other rows. Where widening weights takes long, the warps are several teams, each with stages of its own: while
// one ends a tile, the others multiply.
#pragma once

#include "cuda/few_rows.cuh"
#include "cuda/fixed_sums.cuh"

namespace tl {

constexpr int kFewRowsThreads =
    kConsumerThreads + 32 * sharers_of(kWeightForm, TL_STAGE_K, TL_STREAM_X) * turns_of(TL_STREAM_X);

// Where this lane loads x from: a row of a stage, or 16 zero bytes, and `mask` 0, past the last token.
template <class Ring>
struct XRows {
  // Of weights in the layout pairs8 a lane takes eight neighbours, of others what ldmatrix gives it.
  static constexpr bool kInWords = is_short_integer(Ring::kForm);
  static constexpr int kCount = kInWords ? Ring::kTokenTiles : 1;
  u32 row[kCount], mask[kCount];

  // Of ldmatrix, lanes 0-15 address both halves of a product for tokens 0-7, lanes 16-31 those for tokens 8-15.
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

// What a warp multiplies at a time: a piece of each tile of the stage, the rows of x, and the numbers of their blocks.
template <class Ring>
struct Operands {
  using Piece = WeightPiece<Ring>;
  // Products whose weights have the same numbers, and how many such there are.
  static constexpr int kTogether = kBlock == 0 ? Piece::kProducts : min_of(Piece::kProducts, kBlock / Ring::kProductK);
  static constexpr int kGroups = kBlock == 0 ? 0 : Piece::kProducts / kTogether;
  Piece pieces[Ring::kTilesPerStage];
  u32 x[Piece::kProducts][4];
  u32 number_bits[max_of(1, kNumberKinds)][Ring::kTilesPerStage][2][max_of(1, kGroups)];

  // Whether a tile of a stage has both halves.
  __device__ __forceinline__ static constexpr bool is_whole(int tile) { return tile * 2 + 1 < Ring::kHalves; }
  __device__ __forceinline__ float number(int kind, int tile, int half, int group) const {
    return number_of(number_bits[kind][tile][half][group]);
  }

  // Rows that travel lie in shared memory as they are.
  __device__ __forceinline__ void raise_rows() {
#pragma unroll
    for (int i = 0; i < Piece::kProducts * 2 * Ring::kTokenTiles; ++i) {
      u32& pair = x[i / (2 * Ring::kTokenTiles)][i % (2 * Ring::kTokenTiles)];
      if constexpr (Ring::kXTravels) pair = raised_row(pair);
    }
  }

  // Of the elements of a stage from `k` on.
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

// The consuming warps' tile: accumulators of kTilesPerStage x kTokenTiles fragments over this warp's share of k.
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
  // to += products kFirst to kEnd - 1.
  template <int kFirst, int kEnd>
  __device__ __forceinline__ void products(Sum (&to)[Ring::kTokenTiles][4], const Loaded& loaded, int tile) const {
    if constexpr (kFirst < kEnd) {
      u32 a[4];
      loaded.pieces[tile].template widen<kFirst>(a, mask);
      product(to, a, loaded.x[kFirst]);
      products<kFirst + 1, kEnd>(to, loaded, tile);
    }
  }
  // sums += scale * (weight @ x) + offset * (sum of x) for the groups of products from kGroup on.
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

  // The stage's first k_size elements. Weights in blocks take so many instructions that the next piece is loaded before
  // one is multiplied; of four bits a piece takes enough by itself.
  __device__ __forceinline__ void add_stage(u32 data, int k_size, const StageRows& x, int warp, int lane) {
    constexpr int kTurns = ceil_div(Ring::kStageK / Ring::kPieceK, Ring::kTeamWarps);
    constexpr int kAhead = kBlock == 0 || Ring::kForm == WeightForm::kE2m1 ? 0 : 1;
    const XRows<Ring> rows(x.rows + x.first_k * Ring::kItemBytes, x.zeros, Product::kXPitch, x.present, lane);
    Loaded loaded[1 + kAhead];
#pragma unroll
    for (int i = 0; i < kTurns + kAhead; ++i) {
      const int k = (warp + i * Ring::kTeamWarps) * Ring::kPieceK,
                before = k - kAhead * Ring::kTeamWarps * Ring::kPieceK;
      if (before >= k_size) break;
      if (i < kTurns && k < k_size) loaded[i % (1 + kAhead)].load(data, k, rows, lane);
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
          target[(warp * Ring::kTokens + token) * Ring::kStageRows + row] =
              static_cast<float>(sums[tile][i / 4][i % 4]) * kSumFactor;
        }
      }
    }
  }
};

template <class Ring, class Product, bool kFixed>
struct ProductSumsIn {
  using Type = TileSums<Ring, Product>;
};
template <class Ring, class Product>
struct ProductSumsIn<Ring, Product, true> {
  using Type = FixedSums<Ring, Product>;
};
template <class Ring, class Product>
using ProductSums = typename ProductSumsIn<Ring, Product, Ring::kFixed>::Type;

// The consuming warps.
template <class Ring>
struct Consumer {
  RingPosition<Ring> at;
  char* memory;
  int rows;
  int buffer = 0;
  GroupShare<Ring> share = {};

  // Of rows of bytes, or of the blocks of whole numbers.
  template <class Product>
  __device__ __forceinline__ float* x_scales() const {
    const u32 at = Ring::kFixed ? Ring::kXOffset + Ring::kTokens * Product::kXPitch : Ring::kScaleOffset;
    return reinterpret_cast<float*>(memory + at);
  }
  __device__ __forceinline__ float* sums(int which) const {
    return reinterpret_cast<float*>(memory + Ring::kSumOffset) + which * Ring::kSumFloats;
  }

  template <class Product, bool kNorm, class Op>
  __device__ __forceinline__ void run(const Op& op, const StreamedRows& x, const float* norm_weight, float epsilon) {
    static_assert(!(kNorm && Product::kStreamX), "the norm needs all of x");
    if constexpr (kNorm) warm<Product::kIn>(norm_weight);
    if constexpr (!WalkOf<Op>::kWaits) wait_for_previous_kernel();
    if constexpr (!WalkOf<Op>::kWaits) allow_next_kernel();
    if constexpr (!Product::kStreamX) {
      const RowTarget to{memory + Ring::kXOffset, x_scales<Product>(), x.scale};
      load_rows<Product::kIn, Ring::kTokens, Product::kXPitch, kNorm, Ring::kRows, Ring::kFixed>(
          to, sums(0), x.rows, norm_weight, epsilon, rows);
    }
    if constexpr (WalkOf<Op>::kWaits) wait_for_previous_kernel();
    if constexpr (WalkOf<Op>::kWaits) allow_next_kernel();
    products<Product>(op);
  }

  // Named barriers 2 and up: one a team.
  __device__ __forceinline__ static void sync_team(int team) {
    asm volatile("bar.sync %0, %1;" ::"r"(2 + team), "n"(32 * Ring::kTeamWarps) : "memory");
  }

  // Teams take groups of tiles in turn.
  template <class Product, class Op>
  __device__ __forceinline__ void products(const Op& op) {
    static_assert(kTeams == 1 || (Product::kChunks == 1 && !Product::kStreamX), "a group of tiles is a stage");
    constexpr int kTeamThreads = 32 * Ring::kTeamWarps;
    const int team = kTeams == 1 ? 0 : uniform(threadIdx.x / kTeamThreads), thread = threadIdx.x - team * kTeamThreads;
    const int warp = thread / 32, lane = thread % 32;
    // A team's threads below kStores finish one pair of features each.
    constexpr int kStores = 8 * Ring::kTilesPerStage * Ring::kTokens;
    static_assert(kStores <= kTeamThreads);
    const int feature = thread % 8, sub_tile = thread / 8 % Ring::kTilesPerStage;
    const int stored_token = thread / (8 * Ring::kTilesPerStage);
    using Walk = WalkOf<Op>;
    const int groups = share.groups(op), parts = Walk::parts(op);
    at.advance(team);
    // A stage is work enough for a turn; copies of it only take the compiler a seventh longer.
#pragma unroll 1
    for (int i = team; i < groups; i += kTeams, buffer ^= 1) {
      const int first_tile = share.template group<Op>(i) * Ring::kTilesPerStage, tile = first_tile + sub_tile;
      const bool stores = thread < kStores && tile < Walk::tiles(op) && Walk::stores(op, tile, stored_token, rows);
      const Begun begun = stores ? op.begin(tile, feature, stored_token) : Begun{};
      ProductSums<Ring, Product> part;
#pragma unroll 1
      for (int p = 0; p < parts; ++p) {
        const u32 present = Walk::present(op, p, first_tile, rows);
#pragma unroll 1
        for (int chunk = 0; chunk < Product::kChunks; ++chunk, at.advance(kTeams)) {
          barrier_wait(at.full(), at.parity);
          const u32 x = Product::kStreamX ? at.x_data() : at.shared + Ring::kXOffset,
                    zeros = at.shared + Ring::kZeroOffset;
          const int first_k = Product::kStreamX ? 0 : chunk * Ring::kStageK;
          part.add_stage(at.data(), Product::chunk_k(chunk), {x, zeros, first_k, present}, warp, lane);
          release_stage(at.empty(), lane);
        }
      }
      float* of_team = sums(buffer) + team * Ring::kTeamWarps * Ring::kTokens * Ring::kStageRows;
      part.put(of_team, warp, lane);
      sync_team(team);
      float a = 0.0f, b = 0.0f;
      const int row = stored_token * Ring::kStageRows + sub_tile * kRowsPerTile + feature;
      if (stores) {
#pragma unroll
        for (int w = 0; w < Ring::kTeamWarps; ++w) {
          a += of_team[w * Ring::kTokens * Ring::kStageRows + row];
          if (Ring::kHalves % 2 == 0 || sub_tile * 2 + 1 < Ring::kHalves) {
            b += of_team[w * Ring::kTokens * Ring::kStageRows + row + 8];
          }
        }
        if constexpr (kScaledRows) {
          const float row_scale = Ring::kByteRows ? x_scales<Product>()[stored_token] : 1.0f;
          a *= begun.scale_a * row_scale;
          b *= begun.scale_b * row_scale;
        }
        op.store(tile, feature, stored_token, a, b, begun);
      }
    }
  }
};

// Barriers and zeros, before anything else of a kernel of kFewRowsThreads threads. Returns the shared memory.
template <class Ring>
__device__ __forceinline__ char* start_stream() {
  extern __shared__ __align__(128) char memory[];
  if (threadIdx.x < 4) reinterpret_cast<u32*>(memory + Ring::kZeroOffset)[threadIdx.x] = 0;
  if (threadIdx.x == kConsumerThreads) {
    const u32 shared = shared_address(memory);
    for (int stage = 0; stage < Ring::kStages; ++stage) {
      barrier_init(shared + stage * 16, kFullArrivals * Ring::kSharers);
      barrier_init(shared + stage * 16 + 8, kWarpReleases * Ring::kTeamWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  return memory;
}

// A kernel of one product. x is [rows, kIn]; with kNorm, rms_norm(x) * norm_weight takes its place.
template <int kIn, bool kNorm, class Op>
__device__ __forceinline__ void few_rows_linear(const StreamedRows& x, const float* norm_weight, float epsilon,
                                                int rows, const Op& op) {
  using Ring = RingOf<kIn>;
  using Product = tl::Product<Ring, kIn, TL_STREAM_X>;
  char* memory = start_stream<Ring>();
  const RingPosition<Ring> start{shared_address(memory)};
  if (threadIdx.x >= kConsumerThreads) {
    const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
    Producer<Ring>{start, start, rows, lane}.template run<Product>(op, x.rows, warp - kConsumerWarps);
  } else {
    Consumer<Ring>{start, memory, rows}.template run<Product, kNorm>(op, x, norm_weight, epsilon);
  }
}

}  // namespace tl
