// The shared memory of tiled products, and a block's share in its cluster. Macros: see cuda/tiled_linear.cuh.
#pragma once

#define TL_ROW_TYPE (TL_WEIGHT_FORM == 2 ? 1 : TL_WEIGHT_FORM == 5 ? 2 : 0)
#include "cuda/tensor_copy.cuh"
#include "cuda/weight_form.cuh"
#include "cuda/wgmma.cuh"

namespace tl {

constexpr int kTileRows = TL_TILE_ROWS, kTileColumns = TL_TILE_COLUMNS;
constexpr int kRowBlocks = TL_ROW_BLOCKS, kColumnBlocks = TL_COLUMN_BLOCKS, kSplits = TL_SPLITS;
constexpr int kPeers = kRowBlocks * kColumnBlocks, kCluster = kPeers * kSplits;
static_assert(TL_ROW_TYPE == static_cast<int>(rows_of(kWeightForm)));
constexpr bool kByteRows = TL_ROW_TYPE != 0;
constexpr int kStepK = kBlockRowBytes / (kByteRows ? 1 : 2), kSteps = ceil_div(TL_IN, kStepK* kSplits);
// Whether weights are dequantized. Groups of warps then take turns at raw stages, whose rows of 128 bytes make several
// steps each.
constexpr bool kDequantized = kWeightForm == WeightForm::kInt8 || has_blocks(kWeightForm);
constexpr int kRawStages = TL_RAW_STAGES, kRawK = kBlockRowBytes * 8 / bits_of(kWeightForm);
constexpr int kRawSteps = kRawK / kStepK, kDequantizerGroups = 2;
// 4-bit integers take the fewest instructions. For other types, as many warps dequantize as the registers allow.
constexpr bool kManyDequantizers = kTileRows == 64 && has_blocks(kWeightForm) && !is_short_integer(kWeightForm);
constexpr int kDequantizers = !kDequantized ? 0 : kManyDequantizers ? 10 : 6;
constexpr int kRunBlocks = kBlock == 0 ? 0 : max_of(1, kRawK / max_of(1, kBlock));  // blocks of 8 rows in a raw stage
constexpr int kConsumerWarps = kTileRows / 16, kConsumerThreads = kConsumerWarps * 32;
constexpr int kOtherWarps = kDequantized ? 2 + kDequantizers : 1;
constexpr int kTiledThreads = kConsumerThreads + kOtherWarps * 32;
// Each block that splits the depth finishes a slice of the tile's columns: whole pairs of fragments.
constexpr int kFragments = kTileColumns / 8, kSlice = ceil_div(kFragments, 2 * kSplits) * 2;
constexpr u32 kXBytes = kTileRows * kBlockRowBytes, kWeightBytes = kTileColumns * kBlockRowBytes;
constexpr u32 kStageBytes = kXBytes + kWeightBytes;
// Rows of x are copied in boxes of kXBox rows, at most kXBoxes, of which a step needs those that have rows. The rest of
// the tile is undefined.
constexpr int kXBox = TL_X_BOX, kXBoxes = TL_X_BOXES;
constexpr u32 kXBoxBytes = kXBox * kBlockRowBytes;
constexpr u32 kNumbersBytes = kNumberKinds * kTileColumns / 8 * kRunBlocks * kBlockBytes;
constexpr u32 kRawBytes = kRawStages * (kWeightBytes + kNumbersBytes + 16);
constexpr int kStages = (TL_SHARED_BYTES - static_cast<int>(kRawBytes)) / static_cast<int>(kStageBytes + 16);
constexpr u32 kBarrierOffset = kStages * kStageBytes + kRawStages * (kWeightBytes + kNumbersBytes);
constexpr int kSharedRows = 2048;  // rows of x that stay in the L2 cache during a pass over all weights
static_assert(kSplits == 1 || TL_IN % (kStepK * kSplits) == 0, "parts of the depth are whole steps");
static_assert(TL_OUT % 8 == 0);
static_assert(kTileRows % 64 == 0 && kTileColumns % 16 == 0 && kTileColumns <= 256);
static_assert(kXBox % 8 == 0 && kXBox * kXBoxes <= kTileRows, "boxes of x are whole groups of 8 rows of a tile");
static_assert(!kDequantized || kSplits == 1 || TL_IN % (kRawK * kSplits) == 0,
              "parts of the depth are whole raw stages");
static_assert(kBlock == 0 || kBlock % kRawK == 0 || kRawK % max_of(1, kBlock) == 0,
              "a raw stage is whole blocks, or a part of one");
static_assert(kDequantized == (kRawStages >= 2), "weights that are dequantized need two raw stages");
static_assert(kStages >= 2, "TL_SHARED_BYTES is too small for two stages");
static_assert(kSplits == 1 || kSplits * kSlice * kTileRows * 32 <= kStages * kStageBytes,
              "no room for the sums of other blocks");

#if TL_ROW_BLOCKS * TL_COLUMN_BLOCKS * TL_SPLITS > 1
#define TL_TILED_CLUSTER TL_CLUSTER_DIMS(TL_ROW_BLOCKS * TL_COLUMN_BLOCKS * TL_SPLITS)
#else
#define TL_TILED_CLUSTER
#endif

// A barrier of all threads of the blocks that share copies.
__device__ __forceinline__ void tiled_sync() {
  if constexpr (kCluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
}

// A block's place in its cluster.
struct Member {
  int row, column, split;

  __device__ __forceinline__ Member() {
    const int rank = uniform(cluster_rank());
    row = rank % kRowBlocks;
    column = rank / kRowBlocks % kColumnBlocks;
    split = rank / kPeers;
  }
  __device__ __forceinline__ static int rank(int split, int peer) { return split * kPeers + peer; }
  __device__ __forceinline__ int peer() const { return column * kRowBlocks + row; }
  // The blocks with the same columns, and those with the same rows, as bit masks.
  __device__ __forceinline__ u16 same_columns() const {
    return ((1 << kRowBlocks) - 1) << rank(split, column * kRowBlocks);
  }
  __device__ __forceinline__ u16 same_rows() const {
    u32 blocks = 0;
#pragma unroll
    for (int i = 0; i < kColumnBlocks; ++i) blocks |= 1u << rank(split, i * kRowBlocks + row);
    return static_cast<u16>(blocks);
  }
};

// The position of a tile: its first row and feature of y, the end of its rows, and the number of weight rows before the
// matrix that it multiplies by.
struct Place {
  int row, rows, column, weights;

  // The boxes of x that have rows of the tile.
  __device__ __forceinline__ int x_boxes() const { return min_of(kXBoxes, max_of(0, rows - row + kXBox - 1) / kXBox); }
};

// The tiles of a block, in passes: kSharedRows rows at a time go through all features. Among the tiles that a block
// takes in turn are those of all rows, because the last rows may fill a part of their tile only.
template <class Op>
struct Tiles {
  static constexpr int kOutColumns = kTileColumns / Op::kParts;
  static constexpr int kHeight = kTileRows * kRowBlocks, kWidth = kOutColumns * kColumnBlocks;
  static constexpr int kAcross = ceil_div(TL_OUT, kWidth), kTogether = max_of(1, kSharedRows / kHeight);
  const Member& member;
  int rows, down;

  __device__ __forceinline__ Tiles(const Member& m, const Op&, int r)
      : member(m), rows(r), down(ceil_div(r, kHeight)) {}
  __device__ __forceinline__ int count() const { return down * kAcross; }
  __device__ __forceinline__ static int first() { return blockIdx.x / kCluster; }
  __device__ __forceinline__ static int next(int tile) { return tile + gridDim.x / kCluster; }
  __device__ __forceinline__ bool reads_weights_once() const { return down == 1; }
  __device__ __forceinline__ Place at(int tile) const {
    const int group = tile / (kTogether * kAcross) * kTogether, group_rows = min_of(kTogether, down - group);
    const int within = tile % (kTogether * kAcross), together = gridDim.x / kCluster;
    const int turn = together % group_rows == 0 ? within / together : 0;
    return {(group + (within + turn) % group_rows) * kHeight + member.row * kTileRows, rows,
            within / group_rows * kWidth + member.column * kOutColumns, 0};
  }
  // The Op that finishes the tile.
  __device__ __forceinline__ static const Op& at(const Op& op, const Place&) { return op; }
};

// The tiles of an Op's product. Ops may specialise it.
template <class Op>
struct TilesOf {
  using Type = Tiles<Op>;
};

// A step's position in the shared memory: stages of (x | weights) | raw stages | barriers. A stage is full when its
// bytes have arrived and its weights have been dequantized. It is empty when all warps, of any block, that read the
// copies requested here have done so.
struct TileRing : RingPlace<kStages> {
  __device__ __forceinline__ u32 x() const { return base + stage * kStageBytes; }
  __device__ __forceinline__ u32 weight() const { return x() + kXBytes; }
  __device__ __forceinline__ u32 full() const { return base + kBarrierOffset + stage * 16; }
  __device__ __forceinline__ u32 empty() const { return full() + 8; }
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full() + i * 16, 1 + kDequantizers / kDequantizerGroups);
      barrier_init(empty() + i * 16, kPeers * kConsumerWarps);
    }
    barrier_init_fence();
  }
};

// Copies the weight rows of the tile at `place` from element `column` on. Op::weight_row() says which rows these are:
// runs of Op::kRun rows. Each block that shares them requests some of the boxes.
template <class Op>
__device__ __forceinline__ void copy_columns(u32 target, const TensorMap& weight, const Member& member,
                                             const Place& place, int column, u32 full, u64 policy) {
  constexpr int kBoxRows = min_of(Op::kRun, kTileColumns / kRowBlocks), kBoxes = kTileColumns / kBoxRows;
  static_assert(kTileColumns % kBoxRows == 0 && Op::kRun % kBoxRows == 0 && kBoxRows % 8 == 0);
  static_assert(kBoxes % kRowBlocks == 0, "blocks that share weights ask for equally many boxes");
#pragma unroll
  for (int i = 0; i < kBoxes / kRowBlocks; ++i) {
    const int at = (i * kRowBlocks + member.row) * kBoxRows;
    copy_box<(kRowBlocks > 1)>(target + at * kBlockRowBytes, weight, place.weights + Op::weight_row(place.column, at),
                               column, full, member.same_columns(), policy);
  }
}

// Copies the block scales and offsets of the tile's weight rows, for kRawK elements of each, to `target`, counting on
// barrier `full`. All lanes of a warp copy 16 bytes at a time; rows and blocks that do not exist are filled with zeros.
template <class Op>
__device__ __forceinline__ void copy_block_numbers(u32 target, u32 full, const BlockNumbers& numbers,
                                                   const Place& place, int column, int lane) {
  constexpr int kBlocks = TL_IN / max_of(1, kBlock), kPiecesPerBlock = kBlockBytes / 16;
  constexpr int kRuns = kTileColumns / 8, kRunPieces = kRunBlocks * kPiecesPerBlock;
  const void* kinds[2] = {numbers.scale, numbers.offset};
  const int first_block = column / max_of(1, kBlock);
#pragma unroll
  for (int kind = 0; kind < kNumberKinds; ++kind) {
#pragma unroll 1
    for (int i = lane; i < kRuns * kRunPieces; i += 32) {
      const int run = i / kRunPieces, piece = i % kRunPieces;
      const int row = Op::weight_row(place.column, run * 8), block = first_block + piece / kPiecesPerBlock;
      const bool valid = row < Op::kParts * TL_OUT && block < kBlocks;
      const u64 group = (place.weights + row) / 8;
      const u64 from = valid ? (group * kBlocks + first_block) * kBlockBytes + piece * 16 : 0;
      copy16(target + (kind * kRuns * kRunPieces + i) * 16, static_cast<const char*>(kinds[kind]) + from, valid);
    }
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full) : "memory");
}

}  // namespace tl
