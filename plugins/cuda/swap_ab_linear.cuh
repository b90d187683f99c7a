// Swap-AB products of at most 64 rows with weights that are dequantized, y = op(x @ weight.T), on sm_90a: weight rows
// are the rows of wgmma, 64 for each warpgroup, and come from registers; rows of x are its columns, in shared memory.
//
// Weights are copied to shared memory as stored, and read once by the warps that multiply them. Dequantizing them from
// shared memory to shared memory (cuda/dequantize_weights.cuh) moves five times their bytes, which takes longer than
// reading them from global memory and pays only if the result is multiplied by many rows of x.
//
// A stage is 128 bytes of each of TL_TILE_COLUMNS weight rows, the same elements of the rows of x, and the scales and
// offsets of the blocks. Two warps fill the ring: one copies boxes (cuda/tensor_copy.cuh), the other scales and
// offsets, which takes about as long. For words of neighbours, more warps reorder x. Each other warp has 16 weight
// rows: two times eight, which an Op may need together, as gate and up in a gated product.
//
// TL_X_BOX is the maximum number of rows: 8, 16, 32 or 64. Boxes of x have up to kXPart rows. If there are 32 rows or
// fewer, only these are copied and multiplied; of eight rows, only TL_X_ROWS are copied, if that is defined. The blocks
// of a cluster may split the depth (TL_SPLITS); they have one tile.
//
// Launch: kSwapAbThreads threads, TL_SHARED_BYTES of dynamic shared memory. Macros: see cuda/tiled_linear.cuh, whose
// tiles these are.
#pragma once

#include "cuda/narrow_wgmma.cuh"
#include "cuda/split_sums.cuh"
#include "cuda/tiled_linear.cuh"
#include "cuda/weight_piece.cuh"

namespace tl {

// Words of 4-bit integers in the layout pairs8 give a lane eight neighbouring elements of 32, but the tensor cores want
// the elements of a lane to be in four places. Instead of the weights, x is reordered, which has fewer bytes.
constexpr bool kReordersX = kWordsOfNeighbours;
constexpr int kSwapAbWarps = kTileColumns / 16, kReorderingWarps = kReordersX ? 2 : 0;
constexpr int kSwapAbThreads = (kSwapAbWarps + 2 + kReorderingWarps) * 32;
constexpr int kSwapAbFragments = ceil_div(kXBox, 8), kXPart = min_of(kXBox, 32), kXParts = kXBox / kXPart;
static_assert(kTileColumns % 64 == 0, "a tile is whole warpgroups");
static_assert(kXBox * kXBoxes <= 64 && kXBox % kXPart == 0);
#ifdef TL_X_ROWS
constexpr int kXRows = TL_X_ROWS;  // of a box; the others are undefined, as rows past the last one always are
static_assert(kXBox == 8 && kXRows <= 8);
#else
constexpr int kXRows = kXPart;
#endif

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

// A position in the ring; the barriers lie after all stages. A stage is full when all has arrived and x has been
// reordered; x that will be reordered has landed before.
struct SwapAbRing : RingPlace<kRingStages> {
  __device__ __forceinline__ u32 weight() const { return base + stage * kSwapAbStageBytes; }
  __device__ __forceinline__ u32 x() const { return weight() + kXOffset; }
  __device__ __forceinline__ u32 numbers() const { return weight() + kNumberOffset; }
  __device__ __forceinline__ u32 barriers(int i) const { return base + kRingStages * kSwapAbStageBytes + i * 24; }
  __device__ __forceinline__ u32 full() const { return barriers(stage); }
  __device__ __forceinline__ u32 empty() const { return full() + 8; }
  __device__ __forceinline__ u32 landed() const { return kReordersX ? full() + 16 : full(); }
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kRingStages; ++i) {
      barrier_init(barriers(i), 1 + 32 + kReorderingWarps);
      barrier_init(barriers(i) + 8, kSwapAbWarps);
      barrier_init(barriers(i) + 16, 1);
    }
    barrier_init_fence();
  }
};

constexpr int kSwapAbStages = ceil_div(TL_IN, kRawK* kSplits);  // stages per tile

// The boxes of x that a tile needs.
__device__ __forceinline__ int x_parts(const Place& place) {
  return kXParts == 1 ? 1 : min_of(kXParts, ceil_div(place.rows - place.row, kXPart));
}

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
    expect_bytes(ring.full(), kWeightBytes + (kReordersX ? 0 : x_bytes(place)));
    copy_columns<Op>(ring.weight(), weight, member, place, column * bits_of(kWeightForm) / 8, ring.full(), policy);
  }
  __device__ __forceinline__ static u32 x_bytes(const Place& place) {
    return kRawSteps * x_parts(place) * kXRows * kBlockRowBytes;
  }
  __device__ __forceinline__ void copy_x(const SwapAbRing& ring, const Place& place, int column) const {
    if (kReordersX) expect_bytes(ring.landed(), x_bytes(place));
#pragma unroll
    for (int i = 0; i < kRawSteps; ++i) {
      for (int row = 0; row < x_parts(place) * kXPart; row += kXPart) {
        copy_box<false>(ring.x() + i * kXBlockBytes + row * kBlockRowBytes, x, place.row + row, column + i * kStepK,
                        ring.landed(), 0, cache_policy(false));
      }
    }
  }
  // The first element of a stage of this block's part of the depth.
  __device__ __forceinline__ int column_of(int stage) const { return (member.split * kSwapAbStages + stage) * kRawK; }
  // One lane requests the boxes. Weights of the first stages are requested before the previous kernel has ended.
  __device__ __forceinline__ void bring_boxes(SwapAbRing ring) const {
    constexpr int kEarly = min_of(kRingStages, kSwapAbStages);
    const u64 policy = cache_policy(tiles.reads_weights_once());
    const int first = Places::first();
    prefetch_map(x);
    if (first < tiles.count()) {
      SwapAbRing early = ring;
      const Place place = tiles.at(first);
      for (int stage = 0; stage < kEarly; ++stage, early.advance()) copy_weight(early, place, column_of(stage), policy);
    }
    wait_for_previous_kernel();
    allow_next_kernel();
    for (int tile = first; tile < tiles.count(); tile = Places::next(tile)) {
      const Place place = tiles.at(tile);
      for (int stage = 0; stage < kSwapAbStages; ++stage, ring.advance()) {
        if (tile != first || stage >= kEarly) {
          barrier_wait(ring.empty(), ring.parity ^ 1);
          copy_weight(ring, place, column_of(stage), policy);
        }
        copy_x(ring, place, column_of(stage));
      }
    }
  }
  __device__ __forceinline__ void bring_numbers(SwapAbRing ring) const {
    for (int tile = Places::first(); tile < tiles.count(); tile = Places::next(tile)) {
      const Place place = tiles.at(tile);
#pragma unroll 1
      for (int stage = 0; stage < kSwapAbStages; ++stage, ring.advance()) {
        barrier_wait(ring.empty(), ring.parity ^ 1);
        copy_block_numbers<Op>(ring.numbers(), ring.full(), op.numbers, place, column_of(stage), lane);
      }
    }
  }
};

// A warp that reorders x within each 32 elements of a row. Of the four pairs that a word of weights has, pair i becomes
// a part of piece i, which holds the pairs i of four words. In registers of four lanes that each load a piece, pairs i
// are a row of an 8x8 matrix. A warp loads four rows of 64 elements at a time.
template <class Places>
__device__ __forceinline__ void reorder_x(SwapAbRing ring, const Places& tiles, int warp, int lane) {
  // The places of the piece that this lane loads, and of the matrix row that it stores.
  const u32 from = swizzled(warp * 4 + lane / 8, lane % 8, 0);
  const u32 to = swizzled(warp * 4 + lane % 8 / 2, lane % 2 * 4 + lane / 8, 0);
  for (int tile = Places::first(); tile < tiles.count(); tile = Places::next(tile)) {
    const int rows = x_parts(tiles.at(tile)) * kXPart;
#pragma unroll 1
    for (int stage = 0; stage < kSwapAbStages; ++stage, ring.advance()) {
      barrier_wait(ring.landed(), ring.parity);
#pragma unroll 1
      for (int row = 0; row < rows; row += 4 * kReorderingWarps) {
        const u32 at = ring.x() + row * kBlockRowBytes;
        u32 pairs[kRawSteps][4];
#pragma unroll
        for (int i = 0; i < kRawSteps; ++i) load_shared(pairs[i], at + from + i * kXBlockBytes);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kRawSteps; ++i) store_matrix_x4(at + to + i * kXBlockBytes, pairs[i]);
      }
      fence_async_copies();
      __syncwarp();
      if (lane == 0) barrier_arrive(ring.full());
    }
  }
}

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
  const Member& member;
  Places tiles;
  int warp, lane;
  u32 mask;

  // The first of the warp's eight rows `half` in a tile: halves are kHalfRun rows apart, in runs of so many rows.
  __device__ __forceinline__ int row(int half) const {
    return warp * 8 / Op::kHalfRun * (2 * Op::kHalfRun) + half * Op::kHalfRun + warp * 8 % Op::kHalfRun;
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
      if constexpr (is_short_integer(kWeightForm)) {
        piece.template raise<kProduct>(a[kProduct], mask);
      } else {
        piece.template convert<kProduct>(a[kProduct], mask);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) a[kProduct][i] = numbers[kProduct / kTogether][i % 2].apply(a[kProduct][i]);
      dequantize<kProduct + 1>(a, piece, numbers);
    }
  }
  // Adds the products of kCount pieces of a stage to `sums`. While a piece's products are in flight, the next is
  // dequantized.
  template <int kCount, int kFragments>
  __device__ __forceinline__ void add_stage(float (&sums)[kFragments][4], const SwapAbRing& ring) const {
    // Where rows are few, warps wait for loads and not for products: then all of a stage is loaded first.
    constexpr int kAhead = TL_ORDERED && kXBox <= 16 ? kCount : 1;
    PieceNumbers numbers[kPieceBlocks][2];
    u32 a[2][kProducts][4];
    Piece pieces[kAhead];
    const u64 columns = matrix_descriptor(ring.x(), 0);
    const u32 first = ring.weight() + place();
    barrier_wait(ring.full(), ring.parity);
#pragma unroll
    for (int number = 0; number < kCount; ++number) {
      if (number % kAhead == 0) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) pieces[i].load(first ^ (number + i) * 32);
      }
      const Piece& piece = pieces[number % kAhead];
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
  template <int kFragments>
  __device__ __forceinline__ void multiply(float (&sums)[kFragments][4], SwapAbRing& ring) const {
    constexpr int kWhole = TL_IN / (kRawK * kSplits);
    constexpr int kRest = ceil_div(TL_IN % (kRawK * kSplits), SwapAbForm::kPieceK);
    static_assert(kRest == 0 || kSplits == 1);
#pragma unroll 1
    for (int stage = 0; stage < kWhole; ++stage, ring.advance()) add_stage<kPieces>(sums, ring);
    if constexpr (kRest > 0) {
      add_stage<kRest>(sums, ring);
      ring.advance();
    }
  }
  // Computes a tile of up to 8 * kFragments rows.
  template <int kFragments>
  __device__ __forceinline__ void compute(const Place& place, SwapAbRing& ring) const {
    const int row = place.row + lane % 4 * 2, column = place.column + warp * (16 / Op::kParts);
    float sums[kFragments][4] = {};
    multiply(sums, ring);
    if constexpr (kSplits == 1) {
      Places::at(op, place).finish(sums, row, place.rows, column, lane / 4);
    } else {
      constexpr int kOfBlock = ceil_div(kFragments, kSplits);
      float slice[kOfBlock][4];
      exchange_sums<kSwapAbWarps * 32>(sums, slice, ring.base, member);
      Places::at(op, place).finish(slice, row + member.split * kOfBlock * 8, place.rows, column, lane / 4);
    }
  }
  __device__ __forceinline__ void run(SwapAbRing ring) const {
    wait_for_previous_kernel();
    for (int tile = Places::first(); tile < tiles.count(); tile = Places::next(tile)) {
      const Place place = tiles.at(tile);
      if (kXParts > 1 && x_parts(place) == 1) {
        compute<kXPart / 8>(place, ring);
      } else {
        compute<kSwapAbFragments>(place, ring);
      }
    }
  }
};

template <class Op>
__device__ __forceinline__ void swap_ab_linear(const TensorMap& x, const TensorMap& weight, int rows, const Op& op) {
  extern __shared__ __align__(1024) char memory[];
  const SwapAbRing ring{shared_address(memory)};
  const Member member;
  const typename TilesOf<Op>::Type tiles(member, op, rows);
  const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  if (warp >= kSwapAbWarps) {
    const SwapAbProducer<Op> producer{x, weight, op, member, tiles, lane};
    if (warp == kSwapAbWarps) {
      if (elect_one()) producer.bring_boxes(ring);
      __syncwarp();
    } else if (warp == kSwapAbWarps + 1) {
      producer.bring_numbers(ring);
    } else {
      reorder_x(ring, tiles, warp - kSwapAbWarps - 2, lane);
    }
    if constexpr (kSplits > 1) {  // see exchange_sums()
      cluster_sync();
      cluster_sync();
    }
  } else {
    SwapAbConsumer<Op>{op, member, tiles, warp, lane, pair_mask()}.run(ring);
  }
}

}  // namespace tl
