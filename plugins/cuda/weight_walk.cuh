// The order in which the blocks of a kernel go through weights, stage by stage.
#pragma once

#include "cuda/weight_ring.cuh"

namespace tl {

// In which order a kernel goes through weights: tile by tile, and of each through its parts, whose products with rows
// of x are added up. An Op multiplies each of its kTiles tiles with all rows, unless this is specialised for it.
template <class Op>
struct WalkOf {
  static constexpr bool kWaits = false;   // whether the kernel before says which weights there are; x is older then
  static constexpr bool kListed = false;  // whether rows of x that travel are here and there
  static constexpr bool kOwn = false;     // whether the Op knows the tiles of its block alone
  static constexpr bool kOnePart = true;  // whether parts() is 1
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

}  // namespace tl
