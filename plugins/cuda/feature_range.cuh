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

}  // namespace tl
