// Products of many rows, y = op(x @ weight.T), on sm_90a: tiles of TL_TILE_ROWS rows by TL_TILE_COLUMNS weight rows,
// multiplied by wgmma from a ring that one producer warp fills by the copy engine.
//
// Tile sizes are chosen so that tiles fill the SMs in whole waves: any multiple of 16 columns is possible, where
// libraries have powers of two. Clusters reduce reads: TL_ROW_BLOCKS tiles with the same columns share their weights,
// and TL_COLUMN_BLOCKS tiles with the same rows share their rows of x; each block requests its share, which is
// multicast to all of them. x is copied in boxes of TL_X_BOX rows, at most TL_X_BOXES, which these blocks request in
// turn; boxes without rows are not copied, because the copy engine takes longer to fill rows with zeros than to copy
// them (an H200 took 75 us for one row and 62 us for 64), and warpgroups without rows do not multiply. TL_SPLITS groups
// of such blocks each take a part of the depth, which allows wider tiles; their sums are added in shared memory in a
// fixed order. Clusters take tiles in turn; a cluster that splits the depth has one tile.
//
// Weights are not written by kernels, so the first stages are requested before the previous kernel has ended. Rows of x
// past the last one are undefined: they are multiplied but never stored.
//
// TL_WEIGHT_FORM is the form of the weights (cuda/weight_form.cuh). If both operands are bytes, each row of x and each
// feature has a scale. Sums of int8 are exact; for E4M3, tensor cores of Hopper keep about 14 bits (arXiv 2412.19437,
// section 3.3.2), which is 2^-13 of the largest sum. int8 and 4-bit weights multiplied by 16-bit rows are dequantized
// on their way (cuda/dequantize_weights.cuh).
//
// Launch: kTiledThreads threads, TL_SHARED_BYTES of dynamic shared memory, a multiple of kCluster blocks. Macros: the
// above, TL_IN (with TL_SPLITS > 1 a multiple of TL_SPLITS steps), TL_OUT (of y, a multiple of 8), TL_RAW_STAGES
// (stages of weights to be dequantized, else 0), TL_ROW_SCALES (for bytes: each row of x has its own scale).
#pragma once

#include "cuda/dequantize_weights.cuh"
#include "cuda/split_sums.cuh"
#include "cuda/tile_ring.cuh"
#include "cuda/tiled_rows.cuh"

namespace tl {

// The scales of the weight rows, and of the rows of x if these are bytes; `rows` is null if they share one scale.
struct ProductScales {
  const float* weight;
  const float* rows;
  float x;

  __device__ __forceinline__ float of_row(int row) const { return TL_ROW_SCALES ? rows[row] : kByteRows ? x : 1.0f; }
  // The scales of two rows, 8 apart, or of the last row where there are fewer rows.
  __device__ __forceinline__ float2 of_rows(int row, int end) const {
    if constexpr (!kScaledRows) return make_float2(1.0f, 1.0f);
    return make_float2(of_row(min_of(row, end - 1)), of_row(min_of(row + 8, end - 1)));
  }
  // Prefetches the scales of kCount weight rows from `first` on into the L1 cache while a tile is multiplied.
  template <int kCount>
  __device__ __forceinline__ void warm(int first, int rows) const {
    const int row = threadIdx.x * 32;
    if (kScaledRows && row < min_of(kCount, rows)) {
      asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(weight + first + row)));
    }
  }
  // Multiplies the sums of two rows by their scales and by those of the features from `column` on, in matrix `part` of
  // the weights. Sums of features that do not exist take the scales of the last ones: loads without branches are
  // requested together.
  template <int kFirst, int kCount, int kAll>
  __device__ __forceinline__ void apply(float (&sums)[kAll][4], int part, int column, float2 of_rows) const {
    constexpr int kTogether = 16;
    const float* from = weight + part * TL_OUT + threadIdx.x % 4 * 2;
#pragma unroll
    for (int start = 0; start < kCount; start += kTogether) {
      float2 both[kTogether];
#pragma unroll
      for (int f = start; f < min_of(start + kTogether, kCount); ++f)
        both[f - start] = *reinterpret_cast<const float2*>(from + min_of(column + f * 8, TL_OUT - 8));
#pragma unroll
      for (int f = start; f < min_of(start + kTogether, kCount); ++f) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float scale = (i % 2 == 0 ? both[f - start].x : both[f - start].y) * (i < 2 ? of_rows.x : of_rows.y);
          sums[kFirst + f][i] = rounded_product(sum_of_parts(sums[kFirst + f][i]), scale);
        }
      }
    }
  }
};

// The warp that copies x and, unless other warps dequantize them, weights.
template <class Op>
struct TileProducer {
  using Places = typename TilesOf<Op>::Type;
  const TensorMap &x, &weight;
  const Member& member;
  Places tiles;
  u64 weight_policy, x_policy;

  // Copies the part of a step that is not dequantized.
  __device__ __forceinline__ void copy_weight(const TileRing& ring, const Place& place, int step) const {
    expect_bytes(ring.full(), place.x_boxes() * kXBoxBytes + (kDequantized ? 0 : kWeightBytes));
    const int column = (member.split * kSteps + step) * kStepK;
    if constexpr (!kDequantized)
      copy_columns<Op>(ring.weight(), weight, member, place, column, ring.full(), weight_policy);
  }
  __device__ __forceinline__ void copy_x(const TileRing& ring, const Place& place, int step) const {
    const int column = (member.split * kSteps + step) * kStepK, boxes = place.x_boxes();
#pragma unroll
    for (int first = 0; first < kXBoxes; first += kColumnBlocks) {
      const int box = first + member.column;
      if (box >= boxes) break;
      copy_box<(kColumnBlocks > 1)>(ring.x() + box * kXBoxBytes, x, place.row + box * kXBox, column, ring.full(),
                                    member.same_rows(), x_policy);
    }
  }
  __device__ __forceinline__ void run(TileRing ring) const {
    constexpr int kEarly = min_of(kStages, kSteps);
    const int first = Places::first();
    if (first < tiles.count()) {
      TileRing early = ring;
      const Place place = tiles.at(first);
      for (int step = 0; step < kEarly; ++step, early.advance()) copy_weight(early, place, step);
    }
    wait_for_previous_kernel();
    allow_next_kernel();
    for (int tile = first; tile < tiles.count(); tile = Places::next(tile)) {
      const Place place = tiles.at(tile);
      for (int step = 0; step < kSteps; ++step, ring.advance()) {
        if (tile != first || step >= kEarly) {
          barrier_wait(ring.empty(), ring.parity ^ 1);
          copy_weight(ring, place, step);
        }
        copy_x(ring, place, step);
      }
    }
  }
};

// A consumer warpgroup: it has 64 rows of each tile.
template <class Op>
struct TileConsumer {
  static_assert(kSplits == 1 || Op::kParts == 1, "gate and up of a feature would be in different blocks");
  using Places = typename TilesOf<Op>::Type;
  const Op& op;
  const Member& member;
  Places tiles;
  int rows, warpgroup, lane;

  __device__ __forceinline__ void release(const TileRing& ring) const {
    if constexpr (kPeers == 1) {
      if (lane == 0) barrier_arrive(ring.empty());
    } else {
      if (lane < kPeers) barrier_arrive_of_block(ring.empty(), Member::rank(member.split, lane));
    }
  }
  // Whether the warpgroup has rows of the tile.
  __device__ __forceinline__ bool has_rows(const Place& place) const { return place.row + warpgroup * 64 < place.rows; }
  // Releases the steps of a tile of which the warpgroup has no rows.
  __device__ __forceinline__ void pass(TileRing& ring) const {
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step, ring.advance()) {
      barrier_wait(ring.full(), ring.parity);
      release(ring);
    }
  }
  __device__ __forceinline__ void multiply(float (&results)[kFragments][4], TileRing& ring) const {
    TileSum sums[kFragments][4] = {};
    pin(sums);
    TileRing last = ring;
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      barrier_wait(ring.full(), ring.parity);
      const u64 x = matrix_descriptor(ring.x() + warpgroup * 64 * kBlockRowBytes, 0);
      const u64 weight = matrix_descriptor(ring.weight(), 0);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < static_cast<int>(kBlockRowBytes) / 32; ++k)
        wgmma_shared(sums, x + k * 2, weight + k * 2, true);
      wgmma_commit();
      wgmma_wait<1>();
      if (step > 0) release(last);
      last = ring;
      ring.advance();
    }
    wgmma_wait<0>();
    pin(sums);
    release(last);
#pragma unroll
    for (int i = 0; i < kFragments * 4; ++i) results[i / 4][i % 4] = part_of(sums[i / 4][i % 4]);
  }
  // Staggers warpgroups by some steps, so that the tensor cores work for one while the other stores its sums.
  __device__ __forceinline__ void keep_distance(TileRing ring) const {
    if (warpgroup == 0) return;
#pragma unroll
    for (int step = 0; step < kStages / 2; ++step) ring.advance();
    barrier_wait(ring.full(), ring.parity);
  }
  __device__ __forceinline__ void run(TileRing ring) const {
    float sums[kFragments][4] = {};
    wait_for_previous_kernel();
    if (kSteps > kStages && Places::first() < tiles.count()) keep_distance(ring);
    const int below = warpgroup * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
    if constexpr (kSplits > 1) {
      float slice[kSlice][4];
      const int tile = Places::first();
      const Place place = tiles.at(tile);
      float2 row_scales{};
      if (tile < tiles.count()) {
        op.warm(place.column);
        row_scales = op.scales.of_rows(place.row + below, place.rows);
        if (has_rows(place)) {
          multiply(sums, ring);
        } else {
          pass(ring);
        }
      }
      exchange_sums<kConsumerThreads>(sums, slice, ring.base, member);
      if (tile >= tiles.count()) return;
      const int first = place.column + member.split * kSlice * 8;
      const int end = min_of(place.column + kTileColumns, TL_OUT);
      op.finish(slice, place.row + below, first, place.rows, end, row_scales);
    } else {
      for (int tile = Places::first(); tile < tiles.count(); tile = Places::next(tile)) {
        const Place place = tiles.at(tile);
        if (!has_rows(place)) {
          pass(ring);
          continue;
        }
        const auto& here = Places::at(op, place);
        here.warm(place.column);
        // Loaded before the tile is multiplied, so that no thread waits for them afterwards.
        const float2 row_scales = here.scales.of_rows(place.row + below, place.rows);
        multiply(sums, ring);
        here.finish(sums, place.row + below, place.column, place.rows, TL_OUT, row_scales);
      }
    }
  }
};

template <class Op>
__device__ __forceinline__ void tiled_linear(const TensorMap& x, const TensorMap& weight, int rows, const Op& op) {
  extern __shared__ __align__(1024) char memory[];
  const TileRing ring{shared_address(memory)};
  const Member member;
  const typename TilesOf<Op>::Type tiles(member, op, rows);
  const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    ring.init();
    if constexpr (kDequantized) RawRing{ring.base}.init();
  }
  tiled_sync();
  if (warp >= kConsumerWarps) {
    if constexpr (kDequantized) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kOtherRegisters));
    const u64 weight_policy = cache_policy(tiles.reads_weights_once());
    if (warp == kConsumerWarps) {
      if (elect_one()) {
        prefetch_map(x);
        TileProducer<Op>{x, weight, member, tiles, weight_policy, cache_policy(false)}.run(ring);
      }
      __syncwarp();
    } else if constexpr (kDequantized) {
      if (warp == kConsumerWarps + 1) {
        RawProducer<Op>{weight, op.numbers, member, tiles, weight_policy, lane}.run(RawRing{ring.base});
      } else {
        const int dequantizer = warp - kConsumerWarps - 2;
        Dequantizer<Op>{member, tiles,      dequantizer % kDequantizerGroups, dequantizer / kDequantizerGroups,
                        lane,   pair_mask()}
            .run(ring, RawRing{ring.base});
      }
    }
    if constexpr (kSplits > 1) {
      cluster_sync();
      cluster_sync();
    }
  } else {
    if constexpr (kDequantized) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    TileConsumer<Op>{op, member, tiles, rows, warp / 4, lane}.run(ring);
  }
  if constexpr (kSplits == 1 && kCluster > 1) cluster_sync();  // peers may still arrive at barriers of this block
}

}  // namespace tl
