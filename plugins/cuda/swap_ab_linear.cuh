// Swap-AB products of at most 64 rows with weights that are dequantized, y = op(x @ weight.T), on sm_90a: weight rows
// are the rows of wgmma, 64 for each warpgroup, and come from registers; rows of x are its columns, in shared memory.
//
// Weights are copied to shared memory as stored, and read once by the warps that multiply them. Dequantizing them from
// shared memory to shared memory (cuda/dequantize_weights.cuh) moves five times their bytes, which takes longer than
// reading them from global memory and pays only if the result is multiplied by many rows of x.
//
// A stage is 128 bytes of each of TL_TILE_COLUMNS weight rows, the same elements of TL_X_BOX rows of x, and the scales
// and offsets of the blocks. Two warps fill the ring: one copies boxes (cuda/tensor_copy.cuh), the other scales and
// offsets, which takes about as long. Each other warp has 16 weight rows; in a gated product, eight of gate and eight
// of up.
//
// Launch: kSwapAbThreads threads, TL_SHARED_BYTES of dynamic shared memory. Macros: see cuda/tiled_linear.cuh, whose
// tiles these are.
#pragma once

#include "cuda/grouped_tiles.cuh"
#include "cuda/narrow_wgmma.cuh"
#include "cuda/weight_piece.cuh"

namespace tl {

constexpr int kSwapAbWarps = kTileColumns / 16, kSwapAbThreads = (kSwapAbWarps + 2) * 32;
constexpr int kSwapAbFragments = ceil_div(kXBox, 8);
static_assert(kTileColumns % 64 == 0, "a tile is whole warpgroups");
static_assert(kXBox * kXBoxes <= 64);

// The interface of a ring that cuda/weight_piece.cuh uses.
struct SwapAbForm {
  static constexpr WeightForm kForm = kWeightForm;
  static constexpr bool kFourBits = has_four_bits(kForm);
  static constexpr int kPieceK = 256 / bits_of(kForm), kProductK = 16;
  static constexpr u32 kPitch = kBlockRowBytes;
};

// Applies a block's scale to pairs of its elements as cuda/weight_piece.cuh dequantizes them.
struct SmallFloatNumbers {
  u32 scale;

  __device__ __forceinline__ u32 apply(u32 elements) const { return multiply2(elements, scale); }
  __device__ __forceinline__ static SmallFloatNumbers at(u32 address, u32) {
    return {raised_pair_of(load_number_bits(address))};
  }
};
struct IntegerNumbers {
  PairNumbers pair;

  __device__ __forceinline__ u32 apply(u32 elements) const { return pair.apply(elements); }
  __device__ __forceinline__ static IntegerNumbers at(u32 address, u32 kind_bytes) {
    return {PairNumbers(load_number(address), TL_OFFSETS ? load_number(address + kind_bytes) : 0.0f)};
  }
};
template <bool kSmallFloat>
struct NumbersOf {
  using Type = SmallFloatNumbers;
};
template <>
struct NumbersOf<false> {
  using Type = IntegerNumbers;
};
using PieceNumbers = NumbersOf<is_small_float(kWeightForm)>::Type;

// A stage: weights | x, in blocks of 64 columns | scales and offsets of the blocks, kind by kind.
constexpr u32 kXBlockBytes = kXBox * kBlockRowBytes, kXOffset = kWeightBytes;
constexpr u32 kNumberOffset = kXOffset + kRawSteps * kXBlockBytes;
constexpr u32 kSwapAbStageBytes = (kNumberOffset + kNumbersBytes + 1023) / 1024 * 1024;
constexpr int kRingStages = (TL_SHARED_BYTES - 1024) / static_cast<int>(kSwapAbStageBytes);
static_assert(kRingStages >= 2, "TL_SHARED_BYTES is too small for two stages");

// A position in the ring; the barriers lie after all stages.
struct SwapAbRing : RingPlace<kRingStages> {
  __device__ __forceinline__ u32 weight() const { return base + stage * kSwapAbStageBytes; }
  __device__ __forceinline__ u32 x() const { return weight() + kXOffset; }
  __device__ __forceinline__ u32 numbers() const { return weight() + kNumberOffset; }
  __device__ __forceinline__ u32 full() const { return base + kRingStages * kSwapAbStageBytes + stage * 16; }
  __device__ __forceinline__ u32 empty() const { return full() + 8; }
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kRingStages; ++i) {
      barrier_init(full() + i * 16, 1 + 32);
      barrier_init(empty() + i * 16, kSwapAbWarps);
    }
    barrier_init_fence();
  }
};

constexpr int kSwapAbStages = ceil_div(TL_IN, kRawK);  // stages per tile

// A warp that fills the ring: with boxes of weights and x, or with scales and offsets of blocks.
template <class Op>
struct SwapAbProducer {
  using Places = typename TilesOf<Op>::Type;
  const TensorMap &x, &weight;
  const Op& op;
  const Member& member;
  Places tiles;
  int lane;

  __device__ __forceinline__ void copy_weight(const SwapAbRing& ring, const Place& place, int column,
                                              u64 policy) const {
    expect_bytes(ring.full(), kWeightBytes + kRawSteps * kXBlockBytes);
    copy_columns<Op>(ring.weight(), weight, member, place, column * bits_of(kWeightForm) / 8, ring.full(), policy);
  }
  __device__ __forceinline__ void copy_x(const SwapAbRing& ring, const Place& place, int column) const {
#pragma unroll
    for (int i = 0; i < kRawSteps; ++i) {
      copy_box<false>(ring.x() + i * kXBlockBytes, x, place.row, column + i * kStepK, ring.full(), 0,
                      cache_policy(false));
    }
  }
  // One lane requests the boxes. Weights of the first stages are requested before the previous kernel has ended.
  __device__ __forceinline__ void bring_boxes(SwapAbRing ring) const {
    constexpr int kEarly = min_of(kRingStages, kSwapAbStages);
    const u64 policy = cache_policy(tiles.reads_weights_once());
    const int first = Places::first();
    prefetch_map(x);
    if (first < tiles.count()) {
      SwapAbRing early = ring;
      const Place place = tiles.at(first);
      for (int stage = 0; stage < kEarly; ++stage, early.advance()) copy_weight(early, place, stage * kRawK, policy);
    }
    wait_for_previous_kernel();
    allow_next_kernel();
    for (int tile = first; tile < tiles.count(); tile = Places::next(tile)) {
      const Place place = tiles.at(tile);
      for (int stage = 0; stage < kSwapAbStages; ++stage, ring.advance()) {
        if (tile != first || stage >= kEarly) {
          barrier_wait(ring.empty(), ring.parity ^ 1);
          copy_weight(ring, place, stage * kRawK, policy);
        }
        copy_x(ring, place, stage * kRawK);
      }
    }
  }
  __device__ __forceinline__ void bring_numbers(SwapAbRing ring) const {
    for (int tile = Places::first(); tile < tiles.count(); tile = Places::next(tile)) {
      const Place place = tiles.at(tile);
#pragma unroll 1
      for (int stage = 0; stage < kSwapAbStages; ++stage, ring.advance()) {
        barrier_wait(ring.empty(), ring.parity ^ 1);
        copy_block_numbers<Op>(ring.numbers(), ring.full(), op.numbers, place, stage * kRawK, lane);
      }
    }
  }
};

// A consumer warp: it has 16 weight rows of each tile.
template <class Op>
struct SwapAbConsumer {
  using Places = typename TilesOf<Op>::Type;
  using Piece = WeightPiece<SwapAbForm>;
  static constexpr int kProducts = Piece::kProducts, kPieces = kRawK / SwapAbForm::kPieceK;
  // How many products share scales and offsets, how many such groups a piece has, and how many pieces of a stage share
  // them.
  static constexpr int kTogether = min_of(kProducts, kBlock / 16), kPieceBlocks = kProducts / kTogether;
  static constexpr int kAlike = max_of(1, kBlock / SwapAbForm::kPieceK);
  const Op& op;
  Places tiles;
  int warp, lane;

  // The first of the warp's eight rows `half` in a tile.
  __device__ __forceinline__ int row(int half) const {
    return Op::kParts == 2 ? half * (kTileColumns / 2) + warp * 8 : warp * 16 + half * 8;
  }
  // The offset in a stage of this lane's row of the first piece; other pieces differ in some bits of the address.
  __device__ __forceinline__ u32 place() const {
    return (row(lane / 8 % 2) + lane % 8) * kBlockRowBytes + (lane / 16 ^ lane % 8) * 16;
  }
  // Loads the scales and offsets of this lane's two rows for piece `number`, block by block.
  __device__ __forceinline__ void load(PieceNumbers (&numbers)[kPieceBlocks][2], u32 from, int number) const {
#pragma unroll
    for (int i = 0; i < kPieceBlocks * 2; ++i) {
      const int block = (number * SwapAbForm::kPieceK + i / 2 * kTogether * 16) / kBlock;
      const u32 run = (row(i % 2) / 8 * kRunBlocks + block) * kBlockBytes;
      numbers[i / 2][i % 2] = PieceNumbers::at(from + run + lane / 4 * kNumberBytes, kNumbersBytes / kNumberKinds);
    }
  }
  template <int kProduct>
  __device__ __forceinline__ void dequantize(u32 (&a)[kProducts][4], const Piece& piece,
                                             const PieceNumbers (&numbers)[kPieceBlocks][2]) const {
    if constexpr (kProduct < kProducts) {
      piece.template convert<kProduct>(a[kProduct], 0);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[kProduct][i] = numbers[kProduct / kTogether][i % 2].apply(a[kProduct][i]);
      dequantize<kProduct + 1>(a, piece, numbers);
    }
  }
  // Adds the products of kCount pieces of a stage to `sums`. While a piece's products are in flight, the next is
  // dequantized.
  template <int kCount>
  __device__ __forceinline__ void add_stage(float (&sums)[kSwapAbFragments][4], const SwapAbRing& ring) const {
    PieceNumbers numbers[kPieceBlocks][2];
    u32 a[2][kProducts][4];
    const u64 columns = matrix_descriptor(ring.x(), 0);
    const u32 first = ring.weight() + place();
    barrier_wait(ring.full(), ring.parity);
#pragma unroll
    for (int number = 0; number < kCount; ++number) {
      Piece piece;
      piece.load(first ^ number * 32);
      if (number % kAlike == 0) load(numbers, ring.numbers(), number);
      dequantize<0>(a[number % 2], piece, numbers);
      wgmma_fence();
#pragma unroll
      for (int product = 0; product < kProducts; ++product) {
        const u32 k = number * SwapAbForm::kPieceK + product * 16;
        const u64 b = columns + (k / kStepK * kXBlockBytes + k % kStepK * 2 >> 4);
        wgmma_narrow<RowType::k16Bits>(sums, a[number % 2][product], b, true);
      }
      wgmma_commit();
      wgmma_wait<1>();
    }
    wgmma_wait<0>();
    pin(sums);
    if (lane == 0) barrier_arrive(ring.empty());
  }
  __device__ __forceinline__ void multiply(float (&sums)[kSwapAbFragments][4], SwapAbRing& ring) const {
    constexpr int kWhole = TL_IN / kRawK, kRest = ceil_div(TL_IN % kRawK, SwapAbForm::kPieceK);
#pragma unroll 1
    for (int stage = 0; stage < kWhole; ++stage, ring.advance()) add_stage<kPieces>(sums, ring);
    if constexpr (kRest > 0) {
      add_stage<kRest>(sums, ring);
      ring.advance();
    }
  }
  __device__ __forceinline__ void run(SwapAbRing ring) const {
    wait_for_previous_kernel();
    for (int tile = Places::first(); tile < tiles.count(); tile = Places::next(tile)) {
      const Place place = tiles.at(tile);
      float sums[kSwapAbFragments][4] = {};
      multiply(sums, ring);
      Places::at(op, place).finish(sums, place.row + lane % 4 * 2, place.rows, place.column + warp * (16 / Op::kParts),
                                   lane / 4);
    }
  }
};

template <class Op>
__device__ __forceinline__ void swap_ab_linear(const TensorMap& x, const TensorMap& weight, const Op& op) {
  extern __shared__ __align__(1024) char memory[];
  const SwapAbRing ring{shared_address(memory)};
  const Member member;
  const typename TilesOf<Op>::Type tiles(member, op, 0);
  const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  if (warp >= kSwapAbWarps) {
    const SwapAbProducer<Op> producer{x, weight, op, member, tiles, lane};
    if (warp == kSwapAbWarps) {
      if (elect_one()) producer.bring_boxes(ring);
      __syncwarp();
    } else {
      producer.bring_numbers(ring);
    }
  } else {
    SwapAbConsumer<Op>{op, tiles, warp, lane}.run(ring);
  }
}

}  // namespace tl
