// Dequantizes 8-bit or 4-bit weights to tiles of 16-bit elements. One warp copies them as stored into a ring of raw
// stages, with the scales and offsets of their blocks. Two groups of other warps take turns to dequantize them into
// stages that wgmma reads: while one group waits for its stores, the other computes.
//
// A raw stage is 128 bytes of each of the tile's rows, because shorter copies are slow. It is dequantized into two
// steps of 8-bit weights or four of 4-bit weights. Block scales are applied here, in the 16-bit type; the scales of
// whole int8 rows are applied to the sums. An integer zero point is subtracted exactly.
#pragma once

#include "cuda/small_floats.cuh"
#include "cuda/tile_ring.cuh"

namespace tl {

// Registers per thread of a warpgroup: the consumers get what the other warps leave.
constexpr int kOtherRegisters = kManyDequantizers ? 88 : 56, kConsumerRegisters = kTileRows == 64 ? 240 : 200;

// The raw stages, after the stages of steps: weights | scales and offsets. Their barriers follow the barriers of the
// steps.
struct RawRing : RingPlace<kRawStages> {
  __device__ __forceinline__ u32 first() const { return base + kStages * kStageBytes; }
  __device__ __forceinline__ u32 weight() const { return first() + stage * kWeightBytes; }
  __device__ __forceinline__ u32 numbers() const { return first() + kRawStages * kWeightBytes + stage * kNumbersBytes; }
  __device__ __forceinline__ u32 full() const { return base + kBarrierOffset + kStages * 16 + stage * 16; }
  __device__ __forceinline__ u32 empty() const { return full() + 8; }
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kRawStages; ++i) {
      barrier_init(full() + i * 16, kBlock == 0 ? 1 : 33);
      barrier_init(empty() + i * 16, kPeers * kDequantizers);
    }
    barrier_init_fence();
  }
};

// The producer warp of raw stages. No kernel writes weights, so it waits only for a kernel that lists tiles, if there
// is one.
template <class Op>
struct RawProducer {
  using Places = typename TilesOf<Op>::Type;
  const TensorMap& weight;
  BlockNumbers numbers;
  const Member& member;
  Places tiles;
  u64 policy;
  int lane;

  __device__ __forceinline__ void run(RawRing raw) const {
    for (int tile = Places::first(); tile < tiles.count(); tile = Places::next(tile)) {
      const Place place = tiles.at(tile);
      for (int step = 0; step < kSteps; step += kRawSteps, raw.advance()) {
        barrier_wait(raw.empty(), raw.parity ^ 1);
        const int column = (member.split * kSteps + step) * kStepK;
        if (elect_one()) {
          expect_bytes(raw.full(), kWeightBytes);
          copy_columns<Op>(raw.weight(), weight, member, place, column * bits_of(kWeightForm) / 8, raw.full(), policy);
        }
        __syncwarp();
        if constexpr (kBlock != 0) copy_block_numbers<Op>(raw.numbers(), raw.full(), numbers, place, column, lane);
      }
    }
  }
};

// A block's scale and offset as applied to pairs: the weight is (element - `zero`) * `scale` + `offset`.
struct PairNumbers {
  u32 zero, scale, offset;  // each twice, for a pair

  PairNumbers() = default;
  __device__ __forceinline__ PairNumbers(float block_scale, float block_offset) {
    constexpr bool kSigned = kWeightForm == WeightForm::kInt4, kBytes = kWeightForm == WeightForm::kInt8Blocks;
    // kRaised is the constant that raised_int4() adds.
    constexpr float kRaised = (TL_FP16 ? 1024.0f : 128.0f) + (kSigned ? 8.0f : 0.0f);
    constexpr float kZero = kBytes ? 0.0f : kRaised, kMost = kBytes ? 128.0f : 64.0f;
    const float nearest = TL_OFFSETS && block_scale != 0.0f ? rintf(-block_offset / block_scale) : 0.0f;
    const float point = fminf(fmaxf(nearest, -kMost), kMost - 1.0f), rest = fmaf(point, block_scale, block_offset);
    zero = pack2(kZero + point, kZero + point);
    scale = pack2(block_scale, block_scale);
    offset = pack2(rest, rest);
  }
  __device__ __forceinline__ u32 apply(u32 elements) const {
    const u32 from_zero =
        kWeightForm == WeightForm::kInt8Blocks && !TL_OFFSETS ? elements : subtract2<TL_FP16>(elements, zero);
    return multiply_add2(from_zero, scale, offset);
  }
};

// One of the warps that dequantize: each dequantizes its rows of a raw stage into the stages that wgmma reads.
template <class Op>
struct Dequantizer {
  using Places = typename TilesOf<Op>::Type;
  static constexpr bool kEightBits = !has_four_bits(kWeightForm);
  // A warp takes kRows rows of a step at a time: consecutive lanes have consecutive rows, which avoids bank conflicts.
  // A lane takes pieces of 16 bytes.
  static constexpr int kRows = kEightBits ? 8 : 16, kPieces = 32 / kRows, kWide = kEightBits ? 2 : 4;
  const Member& member;
  Places tiles;
  int group, warp, lane;
  u32 mask;

  static constexpr int kPieceK = 128 / bits_of(kWeightForm);
  static constexpr int kTogether = kDequantizers / kDequantizerGroups;
  static constexpr int kTurns = ceil_div(kTileColumns, kTogether* kRows),
                       kAhead = kManyDequantizers ? 4 : 3;  // iterations that are loaded at a time
  static constexpr u32 kTurnBytes = kTogether * kRows * kBlockRowBytes;

  __device__ __forceinline__ static u32 place(int row, int piece) {
    return row * kBlockRowBytes + (piece ^ row % 8) * 16;
  }
  __device__ __forceinline__ bool exists(int turn) const {
    if (turn >= kTurns) return false;
    return kTileColumns % (kTogether * kRows) == 0 || turn + 1 < kTurns ||
           (turn * kTogether + warp) * kRows < kTileColumns;
  }
  __device__ __forceinline__ void dequantize(const RawRing& raw, u32 target, int step) const {
    const int row = warp * kRows + lane % kRows, piece = lane / kRows;
    const u32 from = raw.weight() + place(row, step * kPieces + piece);
#pragma unroll
    for (int first = 0; first < kTurns; first += kAhead) {
      u32 words[kAhead][4];
      float numbers[kAhead][max_of(1, kNumberKinds)];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int turn = first + i;
        if (!exists(turn)) break;
        load_shared(words[i], from + turn * kTurnBytes);
#pragma unroll
        for (int kind = 0; kind < kNumberKinds; ++kind) {
          const int block = kRunBlocks == 1 ? 0 : (step * kPieces + piece) * kPieceK / max_of(1, kBlock);
          const int run = kind * kTileColumns / 8 + turn * kTogether * kRows / 8 + row / 8;
          numbers[i][kind] =
              load_number(raw.numbers() + (run * kRunBlocks + block) * kBlockBytes + row % 8 * kNumberBytes);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (!exists(first + i)) break;
        store(target + (first + i) * kTurnBytes, row, piece, words[i], numbers[i]);
      }
    }
  }
  __device__ __forceinline__ void store(u32 target, int row, int piece, const u32 (&words)[4],
                                        const float (&numbers)[max_of(1, kNumberKinds)]) const {
    u32 wide[kWide][4];
    if constexpr (kWeightForm == WeightForm::kInt8) {
#pragma unroll
      for (int i = 0; i < 4; ++i) convert_int8(words[i], wide[0][i], wide[1][i]);
    } else if constexpr (kWeightForm == WeightForm::kInt8Blocks) {
      const PairNumbers pair(numbers[0], TL_OFFSETS ? numbers[kNumberKinds - 1] : 0.0f);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        convert_int8(words[i], wide[0][i], wide[1][i]);
        wide[0][i] = pair.apply(wide[0][i]);
        wide[1][i] = pair.apply(wide[1][i]);
      }
    } else if constexpr (kWeightForm == WeightForm::kE4m3) {
      const u32 scale = raised_pair(numbers[0]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wide[0][i] = multiply2(lowered_e4m3<0>(words[i]), scale);
        wide[1][i] = multiply2(lowered_e4m3<1>(words[i]), scale);
      }
    } else if constexpr (kWeightForm == WeightForm::kE2m1) {
      const u32 scale = raised_pair(numbers[0]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wide[0][i] = multiply2(lowered_e2m1<0>(words[i]), scale);
        wide[1][i] = multiply2(lowered_e2m1<1>(words[i]), scale);
        wide[2][i] = multiply2(lowered_e2m1<2>(words[i]), scale);
        wide[3][i] = multiply2(lowered_e2m1<3>(words[i]), scale);
      }
    } else {
      constexpr bool kSigned = kWeightForm == WeightForm::kInt4;
      const PairNumbers pair(numbers[0], TL_OFFSETS ? numbers[kNumberKinds - 1] : 0.0f);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        if constexpr (kWordsOfNeighbours) {
          wide[i][0] = weight_of<kSigned, 0>(words[i], pair);
          wide[i][1] = weight_of<kSigned, 1>(words[i], pair);
          wide[i][2] = weight_of<kSigned, 2>(words[i], pair);
          wide[i][3] = weight_of<kSigned, 3>(words[i], pair);
        } else {
          wide[0][i] = weight_of<kSigned, 0>(words[i], pair);
          wide[1][i] = weight_of<kSigned, 1>(words[i], pair);
          wide[2][i] = weight_of<kSigned, 2>(words[i], pair);
          wide[3][i] = weight_of<kSigned, 3>(words[i], pair);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(target + place(row, piece * kWide + i)),
                   "r"(wide[i][0]), "r"(wide[i][1]), "r"(wide[i][2]), "r"(wide[i][3])
                   : "memory");
    }
  }
  template <bool kSigned, int kPair>
  __device__ __forceinline__ u32 weight_of(u32 word, const PairNumbers& numbers) const {
    return numbers.apply(raised_int4<kSigned, kPair>(word, mask));
  }
  __device__ __forceinline__ void release(const RawRing& raw) const {
    if constexpr (kPeers == 1) {
      if (lane == 0) barrier_arrive(raw.empty());
    } else {
      if (lane < kPeers) barrier_arrive_of_block(raw.empty(), Member::rank(member.split, lane));
    }
  }
  __device__ __forceinline__ void run(TileRing ring, RawRing raw) const {
    for (int tile = Places::first(); tile < tiles.count(); tile = Places::next(tile)) {
#pragma unroll 1
      for (int first = 0; first < kSteps; first += kRawSteps, raw.advance()) {
        barrier_wait(raw.full(), raw.parity);
#pragma unroll 1
        for (int step = 0; step < min_of(kRawSteps, kSteps - first); ++step, ring.advance()) {
          if (step % kDequantizerGroups != group) continue;
          barrier_wait(ring.empty(), ring.parity ^ 1);
          dequantize(raw, ring.weight(), step);
          fence_async_copies();
          __syncwarp();
          if (lane == 0) barrier_arrive(ring.full());
        }
        __syncwarp();
        release(raw);
      }
    }
  }
};

}  // namespace tl
