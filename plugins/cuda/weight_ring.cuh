// A ring of weight stages in shared memory, filled by producer warps (cuda/weight_producer.cuh).
#pragma once

#include "cuda/load_rows.cuh"
#include "cuda/weight_form.cuh"

namespace tl {

constexpr int kRowsPerTile = 16;
constexpr int kMaxStages = 16, kMaxTokens = 16;
constexpr int kTeams = TL_TEAMS;  // teams of consumer warps (cuda/gemv_linear.cuh)

// The number of warps that share a stage of this depth, and the number of groups that take turns at stages
// (GemvConfig in few_rows.py). A warp's fixed work for a stage takes half a microsecond, so short copies need several
// warps, and so does x that is streamed. If copies are long, more warps would only have too many bytes in flight.
__host__ __device__ constexpr int sharers_of(WeightForm form, int stage_k, bool x_travels) {
  return x_travels || stage_k * bits_of(form) / 8 < 1024 ? 2 : 1;
}
__host__ __device__ constexpr int turns_of(bool x_travels) { return x_travels ? 2 : 1; }

// kTokens: the most rows of x. kStageK: depth of a stage. kStageRows: weight rows in a stage, a multiple of 8; 16 rows
// are a tile, and the last tile may lack its second half. kStageX: whether a stage also holds its share of x. kXBytes:
// memory for x if it stays. kSharedBytes: the whole dynamic allocation; the ring takes what is left. kInFlightBytes:
// the most bytes in flight at a time (cuda/weight_producer.cuh).
template <int kTokens_, int kStageK_, int kStageRows_, WeightForm kForm_, bool kStageX, int kXBytes, int kSharedBytes,
          int kInFlightBytes>
struct Ring {
  static constexpr WeightForm kForm = kForm_;
  static constexpr RowType kRows = rows_of(kForm);
  static constexpr bool kByteRows = kRows != RowType::k16Bits;
  static constexpr bool kFourBits = has_four_bits(kForm);
  static constexpr bool kFixed =
      is_short_integer(kForm) && !kStageX && kTokens_ <= kMostFixedTokens;  // whether x is as in fixed_rows.cuh
  static constexpr int kWeightBits = bits_of(kForm);
  static constexpr int kItemBytes = kByteRows ? 1 : 2;  // bytes of an element of x
  static constexpr int kProductK = 32 / kItemBytes;     // elements of a row that a product of fragments takes
  static constexpr int kPieceK = 256 / kWeightBits;     // elements of a row that a load of a fragment takes: 32 bytes
  static constexpr bool kXTravels = kStageX;
  static constexpr int kSplits = 1, kTokens = kTokens_, kStageK = kStageK_, kStageRows = kStageRows_;
  static constexpr int kTeamWarps = kConsumerWarps / kTeams;
  static_assert(kConsumerWarps % kTeams == 0, "teams must have equally many warps");
  static constexpr int kHalves = kStageRows / 8, kTilesPerStage = ceil_div(kHalves, 2);
  static constexpr int kSharers = sharers_of(kForm, kStageK, kStageX), kTurns = turns_of(kStageX);
  static constexpr int kTokenTiles = ceil_div(kTokens, 8);
  // 16 bytes of padding avoid bank conflicts between the eight rows of an ldmatrix.
  static constexpr u32 kPitch = kStageK * kWeightBits / 8 + 16, kStagedXPitch = kStageK * 2 + 16;
  static_assert(!(kStageX && kByteRows), "rows of x are rounded to bytes as a whole");
  // A stage: weights | scales and offsets of the blocks, kind by kind | x
  static constexpr u32 kRunBytes = kBlock == 0 ? 0 : kStageK / max_of(1, kBlock) * kBlockBytes;  // for 8 rows
  static constexpr u32 kNumberOffset = kPitch * kStageRows, kKindBytes = kHalves * kRunBytes;
  static constexpr u32 kStagedXOffset = kNumberOffset + kNumberKinds * kKindBytes;
  static constexpr u32 kStageBytes = kStagedXOffset + (kStageX ? kStagedXPitch * kTokens : 0);
  static constexpr int kSumFloats = kConsumerWarps * kTokens * kStageRows;
  // Shared memory: barriers | 16 zero bytes | scales of x, if quantized | two buffers of partial sums | x | stages
  static constexpr u32 kZeroOffset = kMaxStages * 16;
  static constexpr u32 kScaleOffset = kZeroOffset + 16;
  static constexpr u32 kSumOffset = kScaleOffset + (kByteRows ? kMaxTokens * 4 : 0);
  static constexpr u32 kXOffset = kSumOffset + 2 * kSumFloats * 4;
  static constexpr u32 kStageOffset = kXOffset + kXBytes;
  static constexpr int kStages =
      min_of(kMaxStages, (kSharedBytes - static_cast<int>(kStageOffset)) / static_cast<int>(kStageBytes));
  // A barrier's parity distinguishes only two consecutive rounds. A team waits for a stage when the one kTeams before
  // it has arrived; by then, the stage that used the same place before must have arrived too.
  static constexpr int kMostInFlight = kTeams == 1 ? kStages : kStages - kTeams;
  static constexpr int kInFlight =
      max_of(1, min_of(kMostInFlight, kInFlightBytes / static_cast<int>(kPitch * kStageRows)));
  static_assert(kMostInFlight >= 1, "each team reads a stage, while others are under way");
  static_assert(kStageK % kPieceK == 0 && kTokens <= kMaxTokens && kTilesPerStage <= 2 && kStageRows % 8 == 0);
  static_assert(kStages >= 2, "TL_SHARED_BYTES is too small for two stages");
  static_assert(kTurns <= kStages, "a barrier's parity tells two rounds apart, no more");
  static_assert(kBlock == 0 || (kBlock % 32 == 0 && kStageK % max_of(1, kBlock) == 0), "a stage is whole blocks");

  // The offset in a stage of the scales of a block for the first eight rows of a tile. Those of the other eight rows
  // are kRunBytes further, the offsets kKindBytes further.
  __device__ __forceinline__ static u32 number_place(int tile, int block) {
    return kNumberOffset + tile * 2 * kRunBytes + block * kBlockBytes;
  }
};

// Bytes of shared memory for x that stays there: rows with 16 bytes of padding, and the scales of the blocks of
// fixed_rows.cuh.
template <int kIn, int kTokens>
__host__ __device__ constexpr int x_bytes() {
  if (is_short_integer(kWeightForm) && kTokens <= kMostFixedTokens)
    return kTokens * (kIn * 2 + 16) + FixedRows<kIn, kTokens>::kNumberBytes;
  return kTokens * (kIn * (rows_of(kWeightForm) == RowType::k16Bits ? 2 : 1) + 16);
}

// The ring for rows of kIn features in a kernel that is fully described by its macros.
template <int kIn>
using RingOf = Ring<TL_TOKENS, TL_STAGE_K, TL_STAGE_ROWS, kWeightForm, TL_STREAM_X,
                    TL_STREAM_X ? 0 : x_bytes<kIn, TL_TOKENS>(), TL_SHARED_BYTES, TL_IN_FLIGHT_BYTES>;

// A position in the ring: the number of the stage, and the parity of the number of rounds so far.
template <class Ring>
struct RingPosition {
  u32 shared;
  int stage = 0;
  u32 parity = 0;

  __device__ __forceinline__ u32 full() const { return shared + stage * 16; }
  __device__ __forceinline__ u32 empty() const { return shared + stage * 16 + 8; }
  __device__ __forceinline__ u32 data() const { return shared + Ring::kStageOffset + stage * Ring::kStageBytes; }
  __device__ __forceinline__ u32 x_data() const { return data() + Ring::kStagedXOffset; }
  // Advances by at most one round.
  __device__ __forceinline__ void advance(int steps = 1) {
    stage += steps;
    if (stage < Ring::kStages) return;
    stage -= Ring::kStages;
    parity ^= 1;
  }
};

// The rows of x that a stage is multiplied by: the address of the first in shared memory, and of 16 zero bytes; the
// index in a row of the stage's first element; a bit for each row that exists.
struct StageRows {
  u32 rows, zeros;
  int first_k;
  u32 present;
};

}  // namespace tl
