// How blocks share out the output features of products with experts.
//
// Macro: TL_GRAIN (1, 2, 4 or 8): blocks get whole multiples of so many neighbouring features, as equally many as
// possible.
#pragma once

#include "cuda/types.cuh"

namespace tl {

// Features `first` to `end` - 1, as parts of runs of eight that begin at multiples of eight: a half tile has the rows
// of a run, each at its place, and only the first and the last run may lack some.
struct FeatureRange {
  int first = 0, end = 0;

  // What `block` has of `all` features, a multiple of eight.
  __device__ __forceinline__ static FeatureRange of_block(int all, int block, int blocks) {
    return {boundary(all, block, blocks), boundary(all, block + 1, blocks)};
  }
  // The first feature of `block`.
  __device__ __forceinline__ static int boundary(int all, int block, int blocks) {
    return block * (all / TL_GRAIN) / blocks * TL_GRAIN;
  }
  __device__ __forceinline__ int count() const { return max_of(end - first, 0); }
  __device__ __forceinline__ int runs() const { return count() == 0 ? 0 : ceil_div(end, 8) - first / 8; }
  // What run `i` has of the range; nothing, if there are fewer.
  __device__ __forceinline__ FeatureRange run(int i) const {
    const int from = (first / 8 + i) * 8;
    return {max_of(first, from), min_of(end, from + 8)};
  }
  __device__ __forceinline__ bool has(int feature) const { return first <= feature && feature < end; }
};

// What this block has of known features and of others, whose number is known later: of both together, blocks have
// equally many. Each kind is counted from 0 and comes in runs of up to eight features; known runs come first.
//
// If blocks get whole runs, they take these in turn, so that all blocks read the same part of the memory at a time.
// Otherwise they have ranges, of which two may share a feature of others (both store the same result) where these are
// only a few hundred.
class BlockFeatures {
 public:
  __device__ __forceinline__ explicit BlockFeatures(int known)
      : known_(known), of_known_(FeatureRange::of_block(known, blockIdx.x, gridDim.x)) {}

  __device__ __forceinline__ void add_others(int others) {
    others_ = others;
    const FeatureRange both = FeatureRange::of_block(known_ + others, blockIdx.x, gridDim.x);
    of_others_ = {both.first - of_known_.first, both.end - of_known_.end};
  }
  __device__ __forceinline__ int known_runs() const { return kInTurn ? in_turn(known_) : of_known_.runs(); }
  __device__ __forceinline__ int runs() const {
    return kInTurn ? in_turn(known_ + others_) : of_known_.runs() + of_others_.runs();
  }
  // The features of run `i`, counted over known features if i < known_runs(), else over the others; nothing, if there
  // are fewer runs.
  __device__ __forceinline__ FeatureRange run(int i) const {
    const bool is_known = i < known_runs();
    if constexpr (!kInTurn) return is_known ? of_known_.run(i) : of_others_.run(i - of_known_.runs());
    const int block = blockIdx.x, blocks = gridDim.x, first = 8 * (block + i * blocks);
    if (first >= known_ + others_) return {};
    return is_known ? FeatureRange{first, first + 8} : FeatureRange{first - known_, first - known_ + 8};
  }

 private:
  static constexpr bool kInTurn = TL_GRAIN == 8;

  // The runs of `all` features that this block has, if blocks take them in turn.
  __device__ __forceinline__ static int in_turn(int all) {
    const int block = blockIdx.x, blocks = gridDim.x;
    return max_of((all / 8 - block + blocks - 1) / blocks, 0);
  }

  int known_, others_ = 0;
  FeatureRange of_known_, of_others_ = {};
};

}  // namespace tl
