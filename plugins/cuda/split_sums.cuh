// Adds up the sums of the blocks of a cluster that split the depth of a tile.
#pragma once

#include "cuda/tile_ring.cuh"
#include "cuda/weight_form.cuh"

namespace tl {

// Gives every block all sums of its kSlice fragments (the last blocks may have fewer). Called by kThreads threads, the
// first of the block, while the others call cluster_sync() twice. The sums go through the ring's memory at `base`,
// which is no longer read.
template <int kThreads, int kFragments, int kSlice>
__device__ __forceinline__ void exchange_sums(const float (&sums)[kFragments][4], float (&slice)[kSlice][4], u32 base,
                                              const Member& member) {
  static_assert(kSlice * kSplits >= kFragments);
  const u32 mine = base + threadIdx.x * 16;
  cluster_sync();
#pragma unroll
  for (int split = 0; split < kSplits; ++split) {
    const u32 to = address_of_block(mine, Member::rank(split, member.peer()));
#pragma unroll
    for (int f = 0; f < min_of(kSlice, kFragments - split * kSlice); ++f) {
      store_of_block(to + (member.split * kSlice + f) * kThreads * 16, sums[split * kSlice + f]);
    }
  }
  cluster_sync();
#pragma unroll
  for (int f = 0; f < kSlice; ++f) {
    load_shared(slice[f], mine + f * kThreads * 16);
#pragma unroll
    for (int split = 1; split < kSplits; ++split) {
      float more[4];
      load_shared(more, mine + (split * kSlice + f) * kThreads * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) slice[f][i] = add_parts(slice[f][i], more[i]);
    }
  }
}

}  // namespace tl
