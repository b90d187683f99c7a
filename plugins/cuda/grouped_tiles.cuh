// The tiles of products with experts: for each group of rows that have chosen an expert, those of its weights. Macros
// as in cuda/tiled_linear.cuh, of kernels without clusters, and those of cuda/chosen_experts.cuh; TL_BIAS (1: an Op has
// the bias of all experts).
//
// A group has as many rows as a tile copies of x: those that it lacks are the next group's, or nobody's, and are
// multiplied but not stored. Groups of one expert follow each other, and read its weights at about the same time. The
// list of groups is older than the kernel before, so that weights are asked for before that has ended.
#pragma once

#include "cuda/chosen_experts.cuh"
#include "cuda/tiled_linear.cuh"

namespace tl {

// An Op whose weight is matrices of experts one behind the other.
template <class Op>
struct Grouped : Op {
  ExpertRowGroups groups;

  __device__ __forceinline__ Grouped(const Op& op, ExpertRowGroups g) : Op(op), groups(g) {}
};

// Of steps whose groups are so small, weights leave the L2 cache first, though some experts have several groups, which
// read them at about the same time: an H200 reads 4.1 TB/s instead of 3.4.
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
