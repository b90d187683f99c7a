// A ring of weight stages in shared memory, and the warps that fill it.
//
// They make a bulk copy per row and stage, with no register in between. One warp needs copies of 1 to 2 KB: at 512
// bytes an H200 reaches 3.1 TB/s, at 1 KB 4.1, at 2 KB 4.2 (measured). Of shorter ones two warps make half each.
#pragma once

#include "cuda/async.cuh"
#include "cuda/cluster.cuh"
#include "cuda/load_rows.cuh"
#include "cuda/weight_form.cuh"

namespace tl {

constexpr int kRowsPerTile = 16;
constexpr int kMaxStages = 16, kMaxTokens = 16;
constexpr int kTeams = TL_TEAMS;  // of consuming warps (cuda/stream_linear.cuh)

// Warps that share stages of so many elements of a row, and groups of such that take turns at stages (StreamConfig in
// stream.py). What a warp does for a stage besides copying takes half a microsecond: short copies need several, and so
// does x that travels. More where copies are long would only ask for too much at a time.
__host__ __device__ constexpr int sharers_of(WeightForm form, int stage_k, bool x_travels) {
  return x_travels || stage_k * bits_of(form) / 8 < 1024 ? 2 : 1;
}
__host__ __device__ constexpr int turns_of(bool x_travels) { return x_travels ? 2 : 1; }

// kTokens: rows of x at most. kStageK: depth of a stage. kStageRows: rows of the weight in a stage, eights, of which
// two are a tile; of the last tile the second may be missing. kStageX: a stage also has room for its share of x.
// kXBytes: room for x that stays. kSharedBytes: the whole dynamic allocation; the ring takes what the rest leaves.
// kInFlightBytes: most bytes under way at a time (see Producer).
template <int kTokens_, int kStageK_, int kStageRows_, WeightForm kForm_, bool kStageX, int kXBytes, int kSharedBytes,
          int kInFlightBytes>
struct Ring {
  static constexpr WeightForm kForm = kForm_;
  static constexpr RowType kRows = rows_of(kForm);
  static constexpr bool kByteRows = kRows != RowType::k16Bits;
  static constexpr bool kFourBits = has_four_bits(kForm);
  static constexpr bool kFixed =
      is_short_integer(kForm) && !kStageX && kTokens_ <= kMostFixedTokens;  // x as in fixed_rows.cuh
  static constexpr int kWeightBits = bits_of(kForm);
  static constexpr int kItemBytes = kByteRows ? 1 : 2;  // of x
  static constexpr int kProductK = 32 / kItemBytes;     // elements of a row that one product of fragments takes
  static constexpr int kPieceK = 256 / kWeightBits;     // and those of a load of a fragment, 32 bytes of each row
  static constexpr bool kXTravels = kStageX;
  static constexpr int kSplits = 1, kTokens = kTokens_, kStageK = kStageK_, kStageRows = kStageRows_;
  static constexpr int kTeamWarps = kConsumerWarps / kTeams;
  static_assert(kConsumerWarps % kTeams == 0, "teams are alike");
  static constexpr int kHalves = kStageRows / 8, kTilesPerStage = ceil_div(kHalves, 2);
  static constexpr int kSharers = sharers_of(kForm, kStageK, kStageX), kTurns = turns_of(kStageX);
  static constexpr int kTokenTiles = ceil_div(kTokens, 8);
  // 16 bytes of padding put the eight rows of an ldmatrix into different banks.
  static constexpr u32 kPitch = kStageK * kWeightBits / 8 + 16, kStagedXPitch = kStageK * 2 + 16;
  static_assert(!(kStageX && kByteRows), "rows of x are rounded to bytes as a whole");
  // A stage: weights | numbers of the blocks, kind by kind | x
  static constexpr u32 kRunBytes = kBlock == 0 ? 0 : kStageK / max_of(1, kBlock) * kBlockBytes;  // of 8 rows
  static constexpr u32 kNumberOffset = kPitch * kStageRows, kKindBytes = kHalves * kRunBytes;
  static constexpr u32 kStagedXOffset = kNumberOffset + kNumberKinds * kKindBytes;
  static constexpr u32 kStageBytes = kStagedXOffset + (kStageX ? kStagedXPitch * kTokens : 0);
  static constexpr int kSumFloats = kConsumerWarps * kTokens * kStageRows;
  // Shared memory: barriers | 16 zero bytes | scales of x, if bytes | two buffers of partial sums | x | stages
  static constexpr u32 kZeroOffset = kMaxStages * 16;
  static constexpr u32 kScaleOffset = kZeroOffset + 16;
  static constexpr u32 kSumOffset = kScaleOffset + (kByteRows ? kMaxTokens * 4 : 0);
  static constexpr u32 kXOffset = kSumOffset + 2 * kSumFloats * 4;
  static constexpr u32 kStageOffset = kXOffset + kXBytes;
  static constexpr int kStages =
      min_of(kMaxStages, (kSharedBytes - static_cast<int>(kStageOffset)) / static_cast<int>(kStageBytes));
  // A barrier's parity tells two rounds apart, no more. A team waits for a stage when the one kTeams before it has
  // landed, and then so must have the one that lay in its place.
  static constexpr int kMostInFlight = kTeams == 1 ? kStages : kStages - kTeams;
  static constexpr int kInFlight =
      max_of(1, min_of(kMostInFlight, kInFlightBytes / static_cast<int>(kPitch * kStageRows)));
  static_assert(kMostInFlight >= 1, "each team reads a stage, while others are under way");
  static_assert(kStageK % kPieceK == 0 && kTokens <= kMaxTokens && kTilesPerStage <= 2 && kStageRows % 8 == 0);
  static_assert(kStages >= 2, "TL_SHARED_BYTES is too small for two stages");
  static_assert(kTurns <= kStages, "a barrier's parity tells two rounds apart, no more");
  static_assert(kBlock == 0 || (kBlock % 32 == 0 && kStageK % max_of(1, kBlock) == 0), "a stage is whole blocks");

  // In a stage, the scales of a block of the first eight rows of a tile; kRunBytes behind them those of the others, and
  // kKindBytes behind them the offsets.
  __device__ __forceinline__ static u32 number_place(int tile, int block) {
    return kNumberOffset + tile * 2 * kRunBytes + block * kBlockBytes;
  }
};

// Shared memory of x where it stays there: rows with 16 bytes of padding, and the numbers of the blocks of
// fixed_rows.cuh.
template <int kIn, int kTokens>
__host__ __device__ constexpr int x_bytes() {
  if (is_short_integer(kWeightForm) && kTokens <= kMostFixedTokens)
    return kTokens * (kIn * 2 + 16) + FixedRows<kIn, kTokens>::kNumberBytes;
  return kTokens * (kIn * (rows_of(kWeightForm) == RowType::k16Bits ? 2 : 1) + 16);
}

// The ring of a kernel whose macros say all of it, for rows of kIn features.
template <int kIn>
using RingOf = Ring<TL_TOKENS, TL_STAGE_K, TL_STAGE_ROWS, kWeightForm, TL_STREAM_X,
                    TL_STREAM_X ? 0 : x_bytes<kIn, TL_TOKENS>(), TL_SHARED_BYTES, TL_IN_FLIGHT_BYTES>;

// A place in the ring: stage number and how many times (mod 2) the ring has gone round.
template <class Ring>
struct RingPosition {
  u32 shared;
  int stage = 0;
  u32 parity = 0;

  __device__ __forceinline__ u32 full() const { return shared + stage * 16; }
  __device__ __forceinline__ u32 empty() const { return shared + stage * 16 + 8; }
  __device__ __forceinline__ u32 data() const { return shared + Ring::kStageOffset + stage * Ring::kStageBytes; }
  __device__ __forceinline__ u32 x_data() const { return data() + Ring::kStagedXOffset; }
  // By at most a round.
  __device__ __forceinline__ void advance(int steps = 1) {
    stage += steps;
    if (stage < Ring::kStages) return;
    stage -= Ring::kStages;
    parity ^= 1;
  }
};

// The rows of x that a stage is multiplied with: where the first lies in shared memory, and 16 zero bytes; the number
// of the stage's first element in a row; a bit for each row that there is.
struct StageRows {
  u32 rows, zeros;
  int first_k;
  u32 present;
};

// In which order a kernel goes through weights: tile by tile, and of each through its parts, whose products with rows
// of x are added up. An Op multiplies each of its kTiles tiles with all rows, unless this is specialised for it.
template <class Op>
struct WalkOf {
  static constexpr bool kWaits = false;   // whether the kernel before says which weights there are; x is older then
  static constexpr bool kListed = false;  // whether rows of x that travel are here and there
  static constexpr bool kOwn = false;     // whether the Op knows the tiles of its block alone
  __device__ __forceinline__ static constexpr int tiles(const Op&) { return Op::kTiles; }
  __device__ __forceinline__ static constexpr int parts(const Op&) { return 1; }
  // The rows of the weight that are a part of half of `tile`: the first, and how many there are.
  __device__ __forceinline__ static u64 first_row(const Op& op, int, int tile, int half) {
    return op.first_row(tile, half);
  }
  __device__ __forceinline__ static int num_rows(const Op& op, int tile, int half) { return op.num_rows(tile, half); }
  // A bit for each row of x that a part of `tile` is multiplied with, and which row of x that is.
  __device__ __forceinline__ static u32 present(const Op&, int, int, int rows) { return (1u << rows) - 1; }
  __device__ __forceinline__ static int x_row(const Op&, int, int row) { return row; }
  __device__ __forceinline__ static bool stores(const Op&, int, int row, int rows) { return row < rows; }
};

// A stage in that order, of those of one block.
template <class Product, class Op>
struct Step {
  int group = 0, part = 0, chunk = 0;

  // Of tiles that have `parts` parts.
  __device__ __forceinline__ void advance(int steps, int parts) {
#pragma unroll 1
    for (; steps > 0; --steps) {
      if (++chunk < Product::kChunks) continue;
      chunk = 0;
      if (++part < parts) continue;
      part = 0;
      ++group;
    }
  }
};

// One product y = x @ weight.T of the kernel: kIn features in, all of which a block takes; x staying in shared memory
// or streamed with the weights.
template <class Ring, int kIn_, bool kStreamX_>
struct Product {
  static constexpr int kIn = kIn_, kPartK = kIn, kChunks = ceil_div(kPartK, Ring::kStageK);
  static constexpr int kLastK = kPartK - (kChunks - 1) * Ring::kStageK;
  static constexpr bool kStreamX = kStreamX_;
  static constexpr u32 kXPitch = kStreamX ? Ring::kStagedXPitch : kPartK * Ring::kItemBytes + 16;
  static_assert(kIn % Ring::kPieceK == 0, "a row must be whole pieces");
  static_assert(kBlock == 0 || kIn % max_of(1, kBlock) == 0, "a row must be whole blocks");
  __device__ __forceinline__ static int chunk_k(int chunk) { return chunk == kChunks - 1 ? kLastK : Ring::kStageK; }
};

// Groups of kTilesPerStage tiles go round the clusters, in each of which every block takes its part of their rows.
template <class Ring>
struct GroupShare {
  int cluster = blockIdx.x / Ring::kSplits, clusters = gridDim.x / Ring::kSplits;
  int part = blockIdx.x % Ring::kSplits;

  template <class Op>
  __device__ __forceinline__ int groups(const Op& op) const {
    const int all = ceil_div(WalkOf<Op>::tiles(op), Ring::kTilesPerStage);
    if constexpr (WalkOf<Op>::kOwn) return all;
    return cluster < all ? (all - cluster + clusters - 1) / clusters : 0;
  }
  template <class Op>
  __device__ __forceinline__ int group(int i) const {
    return WalkOf<Op>::kOwn ? i : cluster + i * clusters;
  }
};

// A producing warp: of those that share a stage, and of the groups of such that take turns at stages.
//
// The ring is deep so that copies go on while the consumers do something else, but only kInFlight stages are under way
// at a time: every copy beyond what saturates the memory only lengthens the queues, and everything else that a block
// reads or writes (x, barriers, results) waits in them.
template <class Ring>
struct Producer {
  RingPosition<Ring> at;
  RingPosition<Ring> landing;  // the oldest of its stages under way
  int rows, lane;
  int share = 0;  // of a stage's halves of tiles
  int under_way = 0;
  u64 policy = evict_first_policy();
  GroupShare<Ring> groups = {};

  static constexpr int kHalves = Ring::kHalves, kMine = ceil_div(kHalves, Ring::kSharers);
  static constexpr int kInFlight = max_of(1, Ring::kInFlight / Ring::kTurns);

  // Halves of tiles of a stage: the first row of each, and how many there are.
  struct Halves {
    u64 first[kMine];
    int present[kMine];
  };
  template <class Product, class Op>
  __device__ __forceinline__ Halves halves(const Op& op, const Step<Product, Op>& step) const {
    const int first_tile = groups.template group<Op>(step.group) * Ring::kTilesPerStage;
    Halves mine;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int half = share + i * Ring::kSharers;
      const int tile = first_tile + half / 2;
      mine.first[i] = WalkOf<Op>::first_row(op, step.part, tile, half % 2);
      mine.present[i] = half < kHalves ? WalkOf<Op>::num_rows(op, tile, half % 2) : 0;
    }
    return mine;
  }

  // Waits until its next stage may be overwritten and few enough are under way.
  __device__ __forceinline__ void acquire() {
    if (Ring::kInFlight < Ring::kStages && under_way == kInFlight) {
      barrier_wait(landing.full(), landing.parity);
      landing.advance(Ring::kTurns);
      --under_way;
    }
    ++under_way;
    barrier_wait(at.empty(), at.parity ^ 1);
  }

  // Rows of a half lie one behind the other; past the last feature there is nothing to copy.
  template <class Product, class Op>
  __device__ __forceinline__ void weights(const Op& op, const Step<Product, Op>& step, const Halves& mine) {
    using Walk = WalkOf<Op>;
    const int first_k = groups.part * Product::kPartK + step.chunk * Ring::kStageK;
    const u32 bytes = Product::chunk_k(step.chunk) * Ring::kWeightBits / 8;
    const u32 run_bytes = kBlock == 0 ? 0 : Product::chunk_k(step.chunk) / max_of(1, kBlock) * kBlockBytes;
    u32 copied = 0;
    if (Product::kStreamX && share == 0) {
      const int first_tile = groups.template group<Op>(step.group) * Ring::kTilesPerStage;
      copied = __popc(Walk::present(op, step.part, first_tile, rows)) * Product::chunk_k(step.chunk) * 2;
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i)
      copied += mine.present[i] * bytes + (mine.present[i] > 0 ? kNumberKinds * run_bytes : 0);
    stage_begin(at.full(), copied);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int half = share + i * Ring::kSharers;
      const char* from =
          static_cast<const char*>(op.weight) + (mine.first[i] * Product::kIn + first_k) * Ring::kWeightBits / 8;
      stage_copy_rows<8>(at.data() + half * 8 * Ring::kPitch, Ring::kPitch, from, Product::kIn * Ring::kWeightBits / 8,
                         mine.present[i], bytes, at.full(), lane, policy);
      if constexpr (kBlock != 0) {
        const u64 run = (mine.first[i] / 8 * (Product::kIn / kBlock) + first_k / kBlock) * kBlockBytes;
        const void* kinds[2] = {op.numbers.scale, op.numbers.offset};
#pragma unroll
        for (int kind = 0; kind < kNumberKinds; ++kind) {
          stage_copy_rows<1>(at.data() + Ring::kNumberOffset + (kind * kHalves + half) * Ring::kRunBytes, 0,
                             static_cast<const char*>(kinds[kind]) + run, 0, mine.present[i] > 0, run_bytes, at.full(),
                             lane, policy);
        }
      }
    }
    if (!Product::kStreamX || share > 0) stage_commit(at.full());
  }

  // The first that share a stage bring x.
  template <class Product, class Op>
  __device__ __forceinline__ void activations(const RingPosition<Ring>& to, const Op& op, const u16* x,
                                              const Step<Product, Op>& step) {
    using Walk = WalkOf<Op>;
    if (share > 0) return;
    const u16* from = x + step.chunk * Ring::kStageK;
    const u32 bytes = Product::chunk_k(step.chunk) * 2;
    if constexpr (Walk::kListed) {
      const u32 present =
          Walk::present(op, step.part, groups.template group<Op>(step.group) * Ring::kTilesPerStage, rows);
#pragma unroll 1
      for (u32 left = present; left != 0; left &= left - 1) {
        const int row = __ffs(left) - 1;
        const u16* source = from + static_cast<u64>(Walk::x_row(op, step.part, row)) * Product::kIn;
        stage_copy_rows<1>(to.x_data() + row * Ring::kStagedXPitch, 0, source, 0, 1, bytes, to.full(), lane, policy);
      }
    } else {
      stage_copy_rows<Ring::kTokens>(to.x_data(), Ring::kStagedXPitch, from, Product::kIn * 2, rows, bytes, to.full(),
                                     lane, policy);
    }
    stage_commit(to.full());
  }

  // Weights flow at once, unless the kernel before lists them; x only after the previous kernel. `warp`: of producers.
  template <class Product, class Op>
  __device__ __forceinline__ void run(const Op& op, const u16* x, int warp) {
    using Walk = WalkOf<Op>;
    if constexpr (Walk::kWaits) wait_for_previous_kernel();
    const int parts = Walk::parts(op), total = groups.groups(op) * parts * Product::kChunks;
    const int turn = warp / Ring::kSharers;
    share = warp % Ring::kSharers;
    Step<Product, Op> step;
    at.advance(turn);
    landing.advance(turn);
    step.advance(turn, parts);
    RingPosition<Ring> first = at;
    Step<Product, Op> seen = step;
    const auto ask = [&] {
      const Halves mine = halves(op, step);
      acquire();
      weights(op, step, mine);
    };
    const auto next = [&] {
      at.advance(Ring::kTurns);
      step.advance(Ring::kTurns, parts);
    };
    int i = turn, early = 0;
    for (; i < total && (!Product::kStreamX || early < kInFlight); i += Ring::kTurns, ++early, next()) ask();
    if constexpr (Product::kStreamX) {
      wait_for_previous_kernel();
      for (; early > 0; --early, first.advance(Ring::kTurns), seen.advance(Ring::kTurns, parts)) {
        activations(first, op, x, seen);
      }
      for (; i < total; i += Ring::kTurns, next()) {
        ask();
        activations(at, op, x, step);
      }
    }
  }
};

}  // namespace tl
