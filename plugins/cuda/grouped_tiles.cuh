// The tiles of products with experts. Each group of rows that have chosen an expert is multiplied by the tiles of that
// expert's weights. Macros: those of cuda/tiled_linear.cuh for kernels without clusters, those of
// cuda/chosen_experts.cuh, and TL_BIAS (1: the Op has the bias of all experts).
//
// Boxes of x that have rows of a group are copied. Rows after the group's end belong to the next group or to none; they
// are multiplied but not stored. Groups of one expert are consecutive and read its weights at about the same time. The
// list of groups was written before the previous kernel, so that weights can be prefetched before that kernel has
// ended.
#pragma once

#include "cuda/chosen_experts.cuh"
#include "cuda/tiled_linear.cuh"

namespace tl {

// An Op whose weight is a contiguous array of matrices, one per expert.
template <class Op>
struct Grouped : Op {
  ExpertRowGroups groups;

  __device__ __forceinline__ Grouped(const Op& op, ExpertRowGroups g) : Op(op), groups(g) {}
};

// If the groups of a step are this small, weights are evicted from L2 first, even though some experts have several
// groups, which read them at about the same time: an H200 then reads 4.1 TB/s instead of 3.4.
constexpr int kFewGroupRows = 64;

template <class Op>
struct GroupTiles {
  static_assert(kCluster == 1, "a tile's expert is known to one block");
  static constexpr int kOutColumns = kTileColumns / Op::kParts, kAcross = ceil_div(TL_OUT, kOutColumns);
  ExpertRowGroups groups;

  __device__ __forceinline__ GroupTiles(const Member&, const Grouped<Op>& op, int) : groups(op.groups) {}
  __device__ __forceinline__ int count() const { return groups.count() * kAcross; }
  __device__ __forceinline__ static int first() { return blockIdx.x; }
  __device__ __forceinline__ static int next(int tile) { return tile + gridDim.x; }
  __device__ __forceinline__ bool reads_weights_once() const { return kXBox * kXBoxes <= kFewGroupRows; }
  __device__ __forceinline__ Place at(int tile) const {
    const ExpertRows rows = groups[tile / kAcross];
    return {rows.first, rows.end, tile % kAcross * kOutColumns, rows.expert * Op::kParts * TL_OUT};
  }
  __device__ __forceinline__ static Op at(const Op& op, const Place& place) {
    Op of_expert = op;
    if constexpr (kScaledRows) of_expert.scales.weight += place.weights;
    if constexpr (TL_BIAS != 0) of_expert.bias += place.weights;
    return of_expert;
  }
};

template <class Op>
struct TilesOf<Grouped<Op>> {
  using Type = GroupTiles<Op>;
};

}  // namespace tl
