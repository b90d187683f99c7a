// A ring of weight stages in shared memory, which some warps fill (cuda/weight_producer.cuh).
#pragma once

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
// kInFlightBytes: most bytes under way at a time (cuda/weight_producer.cuh).
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

}  // namespace tl
