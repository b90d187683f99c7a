// The order in which the blocks of a kernel go through weights, stage by stage.
#pragma once

#include "cuda/weight_ring.cuh"

namespace tl {

// The order in which a kernel goes through the weights: tile by tile, and within a tile through its parts, whose
// products are summed. By default each of the Op's kTiles tiles has one part and is multiplied by all rows; Ops may
// specialise this.
template <class Op>
struct WalkOf {
  // Whether it depends on the result of the previous kernel which weights are read. Such Ops have one part.
  // known_tiles() are known before that. Then all threads of the block list the others together by the Op's
  // make_list(), and consumers call its finish_list() while weights arrive.
  static constexpr bool kWaits = false;
  static constexpr bool kListed = false;  // whether streamed rows of x are not contiguous
  static constexpr bool kOwn = false;     // whether the Op assigns tiles to blocks itself
  static constexpr bool kOnePart = true;  // whether parts() is 1
  __device__ __forceinline__ static constexpr int tiles(const Op&) { return Op::kTiles; }
  __device__ __forceinline__ static constexpr int parts(const Op&) { return 1; }
  // The first weight row, and the number of rows, of a part of half `half` of `tile`.
  __device__ __forceinline__ static u64 first_row(const Op& op, int, int tile, int half) {
    return op.first_row(tile, half);
  }
  __device__ __forceinline__ static int num_rows(const Op& op, int tile, int half) { return op.num_rows(tile, half); }
  // A bit for each row of x that a part of `tile` is multiplied by; below, the number of that row in x.
  __device__ __forceinline__ static u32 present(const Op&, int, int, int rows) { return (1u << rows) - 1; }
  __device__ __forceinline__ static int x_row(const Op&, int, int row) { return row; }
  __device__ __forceinline__ static bool stores(const Op&, int, int row, int rows) { return row < rows; }
};

// The position of a block in that order: tile, part and stage.
template <class Product, class Op>
struct Step {
  int group = 0, part = 0, chunk = 0;

  // Advances by `steps`, in tiles of `parts` parts.
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

// A product y = x @ weight.T with kIn input features, all of which a block takes. x either stays in shared memory or is
// streamed with the weights.
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

// Distributes groups of kTilesPerStage tiles over the clusters. Within a cluster, every block takes its part of the
// depth of all rows.
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
