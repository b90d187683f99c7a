// Products of many rows, y = op(x @ weight.T), on sm_90a: tiles of TL_TILE_ROWS rows by TL_TILE_COLUMNS weight rows,
// multiplied by wgmma out of a ring that one warp fills with boxes of the copy engine.
//
// Tiles are cut so that they fill the SMs in whole waves: a multiple of 16 columns does, where libraries have powers of
// two. A cluster lowers what its blocks read: TL_ROW_BLOCKS tiles below each other share their weights, and
// TL_COLUMN_BLOCKS beside each other their rows of x; each block asks for its share, which lands in all of them.
// TL_SPLITS groups of such blocks each take a part of the depth, which allows tiles that much wider; their sums meet in
// shared memory, in a fixed order. Tiles go round the clusters; a cluster that splits the depth has one tile.
//
// Weights are no other kernel's output: the first stages are asked for before the previous kernel has ended.
// Rows of x past the last one may hold anything: they are multiplied and never stored.
//
// With TL_E4M3 both operands are E4M3: a row of x has a scale, and so has a feature. Tensor cores of Hopper keep about 14
// bits of such sums (arXiv 2412.19437, section 3.3.2), which is 2^-13 of the largest of them.
//
// Launch: kTiledThreads threads, TL_SHARED_BYTES of dynamic shared memory, a multiple of kCluster blocks. Macros: the
// above, TL_IN (with TL_SPLITS > 1 a multiple of that many steps), TL_OUT (of y, a multiple of 8), TL_ROW_SCALES (with
// TL_E4M3: each row of x has its own scale).
#pragma once

#include "cuda/tensor_copy.cuh"
#include "cuda/tiled_rows.cuh"
#include "cuda/wgmma.cuh"

namespace tl {

constexpr int kTileRows = TL_TILE_ROWS, kTileColumns = TL_TILE_COLUMNS;
constexpr int kRowBlocks = TL_ROW_BLOCKS, kColumnBlocks = TL_COLUMN_BLOCKS, kSplits = TL_SPLITS;
constexpr int kPeers = kRowBlocks * kColumnBlocks, kCluster = kPeers * kSplits;
constexpr int kStepK = kBlockRowBytes / (TL_E4M3 ? 1 : 2), kSteps = ceil_div(TL_IN, kStepK * kSplits);
constexpr int kConsumerWarps = kTileRows / 16, kConsumerThreads = kConsumerWarps * 32;
constexpr int kTiledThreads = kConsumerThreads + 32;
constexpr int kFragments = kTileColumns / 8, kSlice = ceil_div(kFragments, kSplits);
constexpr u32 kXBytes = kTileRows * kBlockRowBytes, kWeightBytes = kTileColumns * kBlockRowBytes;
constexpr u32 kStageBytes = kXBytes + kWeightBytes;
constexpr int kStages = TL_SHARED_BYTES / static_cast<int>(kStageBytes + 16);
constexpr int kSharedRows = 2048;  // rows of x that stay in the L2 cache while all weights pass
static_assert(kSplits == 1 || TL_IN % (kStepK * kSplits) == 0, "parts of the depth are whole steps");
static_assert(TL_OUT % 8 == 0);
static_assert(kTileRows % 64 == 0 && kTileColumns % 16 == 0 && kTileColumns <= 256);
static_assert(kTileRows % (8 * kColumnBlocks) == 0, "a block's share of x is whole groups of 8 rows");
static_assert(kStages >= 2, "TL_SHARED_BYTES is too small for two stages");
static_assert(kSplits == 1 || kSplits * kSlice * kTileRows * 32 <= kStages * kStageBytes, "no room for the other sums");

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

// The scales of a product of E4M3: of rows of the weight, and of rows of x, which have one in common if `rows` is null.
struct ProductScales {
  const float* weight;
  const float* rows;
  float x;

  __device__ __forceinline__ float of_row(int row) const { return TL_ROW_SCALES ? rows[row] : x; }
  // Multiplies the sums of two rows, 8 apart, from weight row `first` on, by what they mean; `present` fragments exist.
  template <int kFirst, int kCount, int kAll>
  __device__ __forceinline__ void apply(float (&sums)[kAll][4], int first, int present, float upper, float lower) const {
#pragma unroll
    for (int f = 0; f < kCount; ++f) {
      if (f >= present) break;
      const float2 both = reinterpret_cast<const float2*>(weight + first)[f * 4 + threadIdx.x % 4];
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[kFirst + f][i] *= (i % 2 == 0 ? both.x : both.y) * (i < 2 ? upper : lower);
    }
  }
};

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
  // The blocks that have the same columns, and those that have the same rows.
  __device__ __forceinline__ u16 same_columns() const { return ((1 << kRowBlocks) - 1) << rank(split, column * kRowBlocks); }
  __device__ __forceinline__ u16 same_rows() const {
    u32 blocks = 0;
#pragma unroll
    for (int i = 0; i < kColumnBlocks; ++i) blocks |= 1u << rank(split, i * kRowBlocks + row);
    return static_cast<u16>(blocks);
  }
};

// The tiles of a block: first row and first feature of y of each. kSharedRows rows at a time pass all features.
template <int kOutColumns>
struct Tiles {
  static constexpr int kHeight = kTileRows * kRowBlocks, kWidth = kOutColumns * kColumnBlocks;
  static constexpr int kAcross = ceil_div(TL_OUT, kWidth), kTogether = max_of(1, kSharedRows / kHeight);
  const Member& member;
  int down;

  __device__ __forceinline__ Tiles(const Member& m, int rows) : member(m), down(ceil_div(rows, kHeight)) {}
  __device__ __forceinline__ int count() const { return down * kAcross; }
  __device__ __forceinline__ static int first() { return blockIdx.x / kCluster; }
  __device__ __forceinline__ static int next(int tile) { return tile + gridDim.x / kCluster; }
  __device__ __forceinline__ int group(int tile) const { return tile / (kTogether * kAcross) * kTogether; }
  __device__ __forceinline__ int group_rows(int tile) const { return min_of(kTogether, down - group(tile)); }
  __device__ __forceinline__ int row(int tile) const {
    const int within = tile % (kTogether * kAcross) % group_rows(tile);
    return (group(tile) + within) * kHeight + member.row * kTileRows;
  }
  __device__ __forceinline__ int column(int tile) const {
    return tile % (kTogether * kAcross) / group_rows(tile) * kWidth + member.column * kOutColumns;
  }
};

// A step's place in the shared memory: stages of (x | weights) | barriers. A stage is full when its bytes have landed,
// and empty when all warps that consume any of the copies asked for here have used it.
struct TileRing {
  u32 base;
  int stage = 0;
  u32 parity = 0;

  __device__ __forceinline__ u32 x() const { return base + stage * kStageBytes; }
  __device__ __forceinline__ u32 weight() const { return x() + kXBytes; }
  __device__ __forceinline__ u32 full() const { return base + kStages * kStageBytes + stage * 16; }
  __device__ __forceinline__ u32 empty() const { return full() + 8; }
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full() + i * 16, 1);
      barrier_init(empty() + i * 16, kPeers * kConsumerWarps);
    }
    barrier_init_fence();
  }
};

// The producing warp. `Op::kParts` is the number of weight matrices that a tile has equal shares of.
template <class Op>
struct TileProducer {
  using Places = Tiles<kTileColumns / Op::kParts>;
  static constexpr int kBoxes = max_of(Op::kParts, kRowBlocks), kBoxRows = kTileColumns / kBoxes;
  static constexpr int kXRows = kTileRows / kColumnBlocks;
  static_assert(kBoxes % Op::kParts == 0 && kBoxRows % 8 == 0);
  const TensorMap &x, &weight;
  const Member& member;
  Places tiles;
  u64 weight_policy, x_policy;

  __device__ __forceinline__ void copy_weight(const TileRing& ring, int tile, int step) const {
    expect_bytes(ring.full(), kStageBytes);
    const int column = (member.split * kSteps + step) * kStepK;
#pragma unroll
    for (int i = 0; i < kBoxes / kRowBlocks; ++i) {
      const int box = i * kRowBlocks + member.row, part = box / (kBoxes / Op::kParts);
      const int row = part * TL_OUT + tiles.column(tile) + box % (kBoxes / Op::kParts) * kBoxRows;
      copy_box<(kRowBlocks > 1)>(ring.weight() + box * kBoxRows * kBlockRowBytes, weight, row, column, ring.full(),
                                 member.same_columns(), weight_policy);
    }
  }
  __device__ __forceinline__ void copy_x(const TileRing& ring, int tile, int step) const {
    const int column = (member.split * kSteps + step) * kStepK, row = member.column * kXRows;
    copy_box<(kColumnBlocks > 1)>(ring.x() + row * kBlockRowBytes, x, tiles.row(tile) + row, column, ring.full(),
                                  member.same_rows(), x_policy);
  }
  __device__ __forceinline__ void run(TileRing ring) const {
    constexpr int kEarly = min_of(kStages, kSteps);
    const int first = Places::first();
    if (first < tiles.count()) {
      TileRing early = ring;
      for (int step = 0; step < kEarly; ++step, early.advance()) copy_weight(early, first, step);
    }
    wait_for_previous_kernel();
    allow_next_kernel();
    for (int tile = first; tile < tiles.count(); tile = Places::next(tile)) {
      for (int step = 0; step < kSteps; ++step, ring.advance()) {
        if (tile != first || step >= kEarly) {
          barrier_wait(ring.empty(), ring.parity ^ 1);
          copy_weight(ring, tile, step);
        }
        copy_x(ring, tile, step);
      }
    }
  }
};

// A consuming warpgroup: 64 rows of each tile.
template <class Op>
struct TileConsumer {
  static_assert(kSplits == 1 || Op::kParts == 1, "the parts of a column would meet in different blocks");
  using Places = Tiles<kTileColumns / Op::kParts>;
  const Op& op;
  const Member& member;
  Places tiles;
  int rows, warpgroup, lane;
  float sums[kFragments][4];

  __device__ __forceinline__ void release(const TileRing& ring) const {
    if constexpr (kPeers == 1) {
      if (lane == 0) barrier_arrive(ring.empty());
    } else {
      if (lane < kPeers) barrier_arrive_of_block(ring.empty(), Member::rank(member.split, lane));
    }
  }
  __device__ __forceinline__ void multiply(TileRing& ring) {
#pragma unroll
    for (int i = 0; i < kFragments * 4; ++i) sums[i / 4][i % 4] = 0.0f;
    pin(sums);
    TileRing last = ring;
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      barrier_wait(ring.full(), ring.parity);
      const u64 x = matrix_descriptor(ring.x() + warpgroup * 64 * kBlockRowBytes, 0);
      const u64 weight = matrix_descriptor(ring.weight(), 0);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < static_cast<int>(kBlockRowBytes) / 32; ++k) wgmma_shared(sums, x + k * 2, weight + k * 2, true);
      wgmma_commit();
      wgmma_wait<1>();
      if (step > 0) release(last);
      last = ring;
      ring.advance();
    }
    wgmma_wait<0>();
    pin(sums);
    release(last);
  }
  // Every block gets all sums of its kSlice fragments, of which the last block may lack some. Nobody reads the ring any
  // more, so they go there.
  __device__ __forceinline__ void exchange(float (&slice)[kSlice][4], u32 base) const {
    const u32 mine = base + threadIdx.x * 16;
    cluster_sync();
#pragma unroll
    for (int split = 0; split < kSplits; ++split) {
      const u32 to = address_of_block(mine, Member::rank(split, member.peer()));
#pragma unroll
      for (int f = 0; f < min_of(kSlice, kFragments - split * kSlice); ++f) {
        store_of_block(to + (member.split * kSlice + f) * kConsumerThreads * 16, sums[split * kSlice + f]);
      }
    }
    cluster_sync();
#pragma unroll
    for (int f = 0; f < kSlice; ++f) {
      load_shared(slice[f], mine + f * kConsumerThreads * 16);
#pragma unroll
      for (int split = 1; split < kSplits; ++split) {
        float more[4];
        load_shared(more, mine + (split * kSlice + f) * kConsumerThreads * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) slice[f][i] += more[i];
      }
    }
  }
  // Warpgroups keep a distance of steps, so that the tensor cores work for one while the other stores its sums.
  __device__ __forceinline__ void keep_distance(TileRing ring) const {
    if (warpgroup == 0) return;
#pragma unroll
    for (int step = 0; step < kStages / 2; ++step) ring.advance();
    barrier_wait(ring.full(), ring.parity);
  }
  __device__ __forceinline__ void run(TileRing ring) {
    wait_for_previous_kernel();
    if (kSteps > kStages && Places::first() < tiles.count()) keep_distance(ring);
    const int below = warpgroup * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
    if constexpr (kSplits > 1) {
      float slice[kSlice][4];
      const int tile = Places::first();
      if (tile < tiles.count()) multiply(ring);
      exchange(slice, ring.base);
      if (tile >= tiles.count()) return;
      const int column = tiles.column(tile), first = column + member.split * kSlice * 8;
      op.finish(slice, tiles.row(tile) + below, first, rows, min_of(column + kTileColumns, TL_OUT));
    } else {
      for (int tile = Places::first(); tile < tiles.count(); tile = Places::next(tile)) {
        multiply(ring);
        op.finish(sums, tiles.row(tile) + below, tiles.column(tile), rows, TL_OUT);
      }
    }
  }
};

template <class Op>
__device__ __forceinline__ void tiled_linear(const TensorMap& x, const TensorMap& weight, int rows, const Op& op) {
  extern __shared__ __align__(1024) char memory[];
  const TileRing ring{shared_address(memory)};
  const Member member;
  const typename TileProducer<Op>::Places tiles(member, rows);
  const int warp = uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) ring.init();
  tiled_sync();
  if (warp == kConsumerWarps) {
    if (elect_one()) {
      prefetch_map(x);
      const u64 weight_policy = cache_policy(tiles.down == 1);
      TileProducer<Op>{x, weight, member, tiles, weight_policy, cache_policy(false)}.run(ring);
    }
    __syncwarp();
    if constexpr (kSplits > 1) {
      cluster_sync();
      cluster_sync();
    }
  } else {
    TileConsumer<Op>{op, member, tiles, rows, warp / 4, static_cast<int>(threadIdx.x % 32)}.run(ring);
  }
  if constexpr (kSplits == 1 && kCluster > 1) cluster_sync();  // peers may still arrive at barriers here
}

}  // namespace tl
