// The shared memory of a block in a split-K cluster, for weights, sums and its part of the rows of x; and how that part
// is loaded (cuda/split_k_linear.cuh).
#pragma once

#include "cuda/async.cuh"
#include "cuda/cluster.cuh"
#include "cuda/few_rows.cuh"
#include "cuda/load_rows.cuh"
#include "cuda/weight_ring.cuh"
#include "cuda/wgmma.cuh"

namespace tl {

constexpr int kProducingWarps = 4;  // a single warp issues copies of 512 bytes too slowly: 3.1 TB/s on an H200
constexpr int kFewRowsThreads = kConsumerThreads + 32 * kProducingWarps;
constexpr int kWarpgroups = kConsumerWarps / 4;

// Like Ring (cuda/weight_ring.cuh), with x laid out as the columns of wgmma.
template <int kIn>
struct SplitRing {
  static constexpr WeightForm kForm = kWeightForm;
  static constexpr bool kFourBits = has_four_bits(kForm);
  static constexpr RowType kRows = kFourBits ? RowType::kInt8 : rows_of(kForm);  // the type multiplied
  static constexpr bool kByteRows = rows_of(kForm) != RowType::k16Bits;
  static constexpr int kWeightBits = bits_of(kForm), kPieceK = 256 / kWeightBits;
  static constexpr int kItemBytes = kRows == RowType::k16Bits ? 2 : 1, kProductK = 32 / kItemBytes;
  static constexpr int kSplits = TL_SPLITS, kTokens = TL_TOKENS, kStageK = TL_STAGE_K;
  static constexpr int kHalves = TL_STAGE_ROWS / 8, kTilesPerStage = kHalves / 2;
  static constexpr int kSharers = kProducingWarps, kTurns = 1;
  static constexpr int kColumns =
      max_of(8, kFourBits ? 2 * kTokens : kTokens);  // a fixed-point number is two bytes, each a column
  static constexpr int kPartK = kIn / kSplits, kOwnTokens = ceil_div(kTokens, kSplits);
  static constexpr u32 kPitch = kStageK * kWeightBits / 8 + 16;  // padded to avoid bank conflicts of ldmatrix
  // A stage: weights | numbers of the blocks, kind by kind
  static constexpr u32 kRunBytes = kBlock == 0 ? 0 : kStageK / max_of(1, kBlock) * kBlockBytes;  // for 8 rows
  static constexpr u32 kNumberOffset = kPitch * kTilesPerStage * kRowsPerTile;
  static constexpr u32 kKindBytes = kHalves * kRunBytes;
  static constexpr u32 kStageBytes = kNumberOffset + kNumberKinds * kKindBytes;
  static constexpr u32 kXBytes =
      ceil_div(kPartK * kItemBytes, static_cast<int>(kBlockRowBytes)) * kColumns * kBlockRowBytes;
  // The sums of a group that a block receives for its own tokens. Each warpgroup of the cluster sends, token by token,
  // pairs of sums whose features are 8 apart.
  static constexpr int kSources = kSplits * kWarpgroups, kPairs = kTilesPerStage * 8;
  static constexpr u32 kSumBytes = kSources * kOwnTokens * kPairs * 8;
  // Shared memory: stage barriers | cluster barriers | scales of x, if quantized | partial row sums from the blocks |
  // two buffers of sums | x | scales of its blocks | stages
  static constexpr u32 kSumBarrier = kMaxStages * 16, kRowBarrier = kSumBarrier + 16;
  static constexpr u32 kScaleOffset = kRowBarrier + 16, kRowOffset = kScaleOffset + kMaxTokens * 4;
  static constexpr u32 kSumOffset = kRowOffset + 2 * kSplits * kMaxTokens * 4;
  static constexpr u32 kXOffset = (kSumOffset + 2 * kSumBytes + 1023) / 1024 * 1024;
  static constexpr u32 kStageOffset = kXOffset + kXBytes + (kFourBits ? FixedRows<kPartK, kTokens>::kNumberBytes : 0);
  static constexpr int kStages =
      min_of(kMaxStages, (TL_SHARED_BYTES - static_cast<int>(kStageOffset)) / static_cast<int>(kStageBytes));
  static constexpr int kInFlight = max_of(1, min_of(kStages, TL_IN_FLIGHT_BYTES / static_cast<int>(kNumberOffset)));
  static_assert(!has_blocks(kForm) || is_short_integer(kForm),
                "weights with other blocks are multiplied without split-K");
  static_assert(kStages >= 2, "TL_SHARED_BYTES is too small for two stages");
  static_assert(TL_SHARED_BYTES - kStageOffset == TL_RING_BYTES, "TL_RING_BYTES is not the size of the ring");
  static_assert(kColumns % 8 == 0 && kTokens <= kMaxTokens && kTilesPerStage <= 4);
  static_assert(kIn % kSplits == 0 && kPartK % kPieceK == 0 && kStageK % kPieceK == 0, "a part must be whole pieces");
  static_assert(kBlock == 0 || (kPartK % max_of(1, kBlock) == 0 && kStageK % max_of(1, kBlock) == 0),
                "a part must be whole blocks");

  __device__ __forceinline__ static u32 number_place(int tile, int block) {
    return kNumberOffset + tile * 2 * kRunBytes + block * kBlockBytes;
  }
};

// This block's part of the rows of x. Each warp normalizes and quantizes every eighth row.
template <class Ring>
struct PartRows {
  using Share = RowShare<Ring::kPartK, 32>;
  using Fixed = FixedRows<Ring::kPartK, Ring::kTokens>;
  static constexpr int kMine = ceil_div(Ring::kTokens, kConsumerWarps);
  static constexpr bool kRowScales = Ring::kByteRows && TL_ROW_SCALES;
  char* memory;
  u32 shared;
  int part, warp, lane;

  // Reduces each value over all blocks: the sum, or the maximum, for that row.
  template <bool kSum>
  __device__ __forceinline__ void across_parts(float (&values)[kMine]) const {
    const u32 numbers = shared + Ring::kRowOffset + (kSum ? 0 : Ring::kSplits * kMaxTokens * 4);
    const u32 barrier = shared + Ring::kRowBarrier + (kSum ? 0 : 8);
    if (threadIdx.x == 0) expect_bytes(barrier, Ring::kSplits * kMine * kConsumerWarps * 4);
    if (lane < Ring::kSplits) {
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        send_to_block(numbers + (part * kMaxTokens + warp + i * kConsumerWarps) * 4, barrier, lane, values[i]);
      }
    }
    barrier_wait_cluster(barrier, 0);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const float* of_row = reinterpret_cast<const float*>(memory + (numbers - shared)) + warp + i * kConsumerWarps;
      values[i] = of_row[0];
#pragma unroll
      for (int other = 1; other < Ring::kSplits; ++other) {
        const float value = of_row[other * kMaxTokens];
        values[i] = kSum ? values[i] + value : fmaxf(values[i], value);
      }
    }
  }

  // The address of this lane's first vector of row `m`; its next vectors follow kStep bytes apart. A row in fixed point
  // is stored as two, one for each `plane` of bytes, and in either a vector lies in two pieces (`half`), four bytes in
  // each, as lanes of the product read them.
  static constexpr int kStep =
      32 * 8 * Ring::kItemBytes / static_cast<int>(kBlockRowBytes) * Ring::kColumns * static_cast<int>(kBlockRowBytes);
  __device__ __forceinline__ char* place(int m, int plane = 0, int half = 0) const {
    const int row = Ring::kFourBits ? 2 * m + plane : m;
    const int piece = Ring::kFourBits ? lane / 4 * 2 + half : lane * Ring::kItemBytes / 2;
    const int byte = Ring::kFourBits ? lane % 4 * 4 : lane * 8 * Ring::kItemBytes % 16;
    return memory + Ring::kXOffset + swizzled(row, piece, Ring::kColumns) + byte;
  }
  __device__ __forceinline__ void store(int m, const uint4 (&raw)[Share::kCount], float scale) const {
    if constexpr (Ring::kFourBits) {
      char* places[4] = {place(m, 0, 0), place(m, 0, 1), place(m, 1, 0), place(m, 1, 1)};
      const auto put = [&](int at, uint4 bytes) {
        const int i = at / 32 * kStep;
        *reinterpret_cast<u32*>(places[0] + i) = bytes.x;
        *reinterpret_cast<u32*>(places[1] + i) = bytes.y;
        *reinterpret_cast<u32*>(places[2] + i) = bytes.z;
        *reinterpret_cast<u32*>(places[3] + i) = bytes.w;
      };
      float* numbers = reinterpret_cast<float*>(memory + Ring::kXOffset + Ring::kXBytes);
      Fixed::store(numbers, m, raw, [&](int i) { return Share::exists(i) ? lane + i * 32 : -1; }, put);
    } else {
      const float factor = Ring::kByteRows ? 1.0f / scale : 1.0f;
      char* vectors = place(m);
#pragma unroll
      for (int i = 0; i < Share::kCount; ++i) {
        if (!Share::exists(i)) continue;
        if constexpr (Ring::kByteRows) {
          *reinterpret_cast<uint2*>(vectors + i * kStep) = pack8_bytes<Ring::kRows>(raw[i], factor);
        } else {
          *reinterpret_cast<uint4*>(vectors + i * kStep) = raw[i];
        }
      }
      if (Ring::kByteRows && lane == 0) reinterpret_cast<float*>(memory + Ring::kScaleOffset)[m] = scale;
    }
  }

  // Loads this block's part of the rows, and ends with a barrier of the consumer warps. `norm_weight` is for whole
  // rows.
  template <bool kNorm, int kIn>
  __device__ __forceinline__ void load(const StreamedRows& x, const float* norm_weight, float epsilon, int rows) const {
    uint4 raw[kMine][Share::kCount];
    float squares[kMine], largest[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int m = warp + i * kConsumerWarps;
      Share::load(raw[i], x.rows + static_cast<u64>(m) * kIn + part * Ring::kPartK, m < rows);
    }
    if constexpr (kNorm) {
#pragma unroll
      for (int i = 0; i < kMine; ++i) squares[i] = warp_sum(Share::sum_of_squares(raw[i]));
      across_parts<true>(squares);
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        Share::scale(raw[i], rsqrtf(squares[i] / kIn + epsilon), norm_weight + part * Ring::kPartK);
      }
    }
    if constexpr (kRowScales) {
#pragma unroll
      for (int i = 0; i < kMine; ++i) largest[i] = warp_max(Share::largest(raw[i]));
      across_parts<false>(largest);
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int m = warp + i * kConsumerWarps;
      const float scale = kRowScales ? scale_of_row<Ring::kRows>(largest[i], x.scale) : x.scale;
      if (m < rows) store(m, raw[i], scale);
    }
    fence_async_copies();
    consumer_sync();
  }
};

}  // namespace tl
