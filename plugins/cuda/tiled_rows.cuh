// Rows of 16-bit elements and the accumulators of cuda/wgmma.cuh: of a row, each lane of four holds four bytes of every
// 16, and global memory wants 16 bytes a lane.
#pragma once

#include "cuda/types.cuh"

namespace tl {

// Lane q of each four gets pieces[i] = pieces[q] of lane i.
__device__ __forceinline__ void transpose_quad(u32 (&pieces)[4], int lane) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool high = lane & bit;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const u32 got = __shfl_xor_sync(0xffffffffu, high ? pieces[i] : pieces[i + bit], bit);
      (high ? pieces[i] : pieces[i + bit]) = got;
    }
  }
}

// A row of kCount fragments of eight elements, of which the first `present` exist (maybe less than none). All lanes of
// a warp take part even where their row has none.
template <int kCount>
struct RowPart {
  u16* row;
  int present, lane;

  // pieces[f]: this lane's two elements of fragment f.
  __device__ __forceinline__ void store(const u32 (&pieces)[kCount]) const {
#pragma unroll
    for (int f = 0; f + 4 <= kCount; f += 4) {
      u32 mine[4] = {pieces[f], pieces[f + 1], pieces[f + 2], pieces[f + 3]};
      transpose_quad(mine, lane);
      const int at = f + lane % 4;
      if (at < present) reinterpret_cast<uint4*>(row)[at] = make_uint4(mine[0], mine[1], mine[2], mine[3]);
    }
#pragma unroll
    for (int f = kCount / 4 * 4; f < kCount; ++f) {
      if (f < present) reinterpret_cast<u32*>(row)[f * 4 + lane % 4] = pieces[f];
    }
  }
  // Every element comes from where the same thread's store() puts one.
  __device__ __forceinline__ void load(u32 (&pieces)[kCount]) const {
#pragma unroll
    for (int f = 0; f + 4 <= kCount; f += 4) {
      const int at = f + lane % 4;
      uint4 got = make_uint4(0, 0, 0, 0);
      if (at < present) got = __ldcg(reinterpret_cast<const uint4*>(row) + at);
      u32 mine[4] = {got.x, got.y, got.z, got.w};
      transpose_quad(mine, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) pieces[f + i] = mine[i];
    }
#pragma unroll
    for (int f = kCount / 4 * 4; f < kCount; ++f) {
      pieces[f] = f < present ? __ldcg(reinterpret_cast<const u32*>(row) + f * 4 + lane % 4) : 0;
    }
  }
};

}  // namespace tl
