// Rows of 16-bit elements and the accumulators of cuda/wgmma.cuh: of a row, each lane of four holds four bytes of every
// 16, and global memory wants 16 bytes a lane.
#pragma once

#include "cuda/byte_rows.cuh"

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

// The same of a row of bytes.
template <RowType kType, int kCount>
struct ByteRowPart {
  unsigned char* row;
  int present, lane;

  // values[f]: this lane's two elements of fragment f, which are stored as bytes of `factor` times them.
  __device__ __forceinline__ void store(const float2 (&values)[kCount], float factor) const {
    u32 pairs[ceil_div(kCount, 2)];  // of fragments 2i and 2i + 1
#pragma unroll
    for (int f = 0; f < kCount; f += 2) {
      const float2 a = values[f], b = f + 1 < kCount ? values[f + 1] : make_float2(0.0f, 0.0f);
      pairs[f / 2] = pack4<kType>(a.x * factor, a.y * factor, b.x * factor, b.y * factor);
    }
    constexpr int kWhole = kCount / 8 * 8;
#pragma unroll
    for (int f = 0; f < kWhole; f += 8) {
      u32 mine[4] = {pairs[f / 2], pairs[f / 2 + 1], pairs[f / 2 + 2], pairs[f / 2 + 3]};
      transpose_quad(mine, lane);
      const int at = f + lane % 4 * 2;  // this lane's fragments: at and at + 1
      const uint2 first = make_uint2(__byte_perm(mine[0], mine[1], 0x5410), __byte_perm(mine[2], mine[3], 0x5410));
      const uint2 second = make_uint2(__byte_perm(mine[0], mine[1], 0x7632), __byte_perm(mine[2], mine[3], 0x7632));
      if (at < present) reinterpret_cast<uint2*>(row)[at] = first;
      if (at + 1 < present) reinterpret_cast<uint2*>(row)[at + 1] = second;
    }
#pragma unroll
    for (int f = kWhole; f < kCount; ++f) {
      if (f < present) reinterpret_cast<u16*>(row)[f * 4 + lane % 4] = static_cast<u16>(pairs[f / 2] >> f % 2 * 16);
    }
  }
};

}  // namespace tl
