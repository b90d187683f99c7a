// Rows of 16-bit elements in the accumulator layout of cuda/wgmma.cuh: each of four lanes holds four bytes of every 16
// bytes of a row. Global memory is best accessed by 16 bytes per lane.
#pragma once

#include "cuda/byte_rows.cuh"
#include "cuda/transpose.cuh"

namespace tl {

// The rows of two neighbouring quads of lanes, which store 128 bytes of each row together.
struct RowPair {
  uint4 *even, *odd;
  int num_even, num_odd;  // vectors that exist
  bool second;            // whether this is the second quad

  __device__ __forceinline__ RowPair(void* row, int present, int lane) : second(lane & 4) {
    const u64 own = reinterpret_cast<u64>(row), other = __shfl_xor_sync(0xffffffffu, own, 4);
    const int others = __shfl_xor_sync(0xffffffffu, present, 4);
    even = reinterpret_cast<uint4*>(second ? other : own);
    odd = reinterpret_cast<uint4*>(second ? own : other);
    num_even = second ? others : present;
    num_odd = second ? present : others;
  }

  // Stores the vectors of lane q at indices `at` + q and `at` + 4 + q of its row.
  __device__ __forceinline__ void store(u32 (&a)[4], u32 (&b)[4], int at, int lane) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 got = __shfl_xor_sync(0xffffffffu, second ? a[i] : b[i], 4);
      (second ? a[i] : b[i]) = got;
    }
    const int mine = at + (second ? 4 : 0) + lane % 4;
    if (mine < num_even) even[mine] = make_uint4(a[0], a[1], a[2], a[3]);
    if (mine < num_odd) odd[mine] = make_uint4(b[0], b[1], b[2], b[3]);
  }
};

// Regroups two fragments of eight elements that four lanes hold. Before, lane q has elements 2q and 2q + 1 of both, in
// `a` and `b`. After, lanes 0 and 1 have the first and the last four elements of `a`, lanes 2 and 3 those of `b`.
__device__ __forceinline__ void join_quad(float2 a, float2 b, u32 (&four)[4], int lane) {
  const auto exchange = [](float2 value, int bit) {
    return make_float2(__shfl_xor_sync(0xffffffffu, value.x, bit), __shfl_xor_sync(0xffffffffu, value.y, bit));
  };
  const bool high = lane & 2, odd = lane & 1;
  const float2 across = exchange(high ? a : b, 2);
  const float2 first = high ? across : a, second = high ? b : across;  // pairs q % 2 and q % 2 + 2
  const float2 beside = exchange(odd ? first : second, 1);
  const float2 low = odd ? beside : first, up = odd ? second : beside;
  four[0] = __float_as_uint(low.x);
  four[1] = __float_as_uint(low.y);
  four[2] = __float_as_uint(up.x);
  four[3] = __float_as_uint(up.y);
}

// A row of kCount fragments of eight elements. The first `present` fragments exist (none if negative). All lanes of a
// warp take part, even if their row has none.
template <int kCount>
struct RowPart {
  u16* row;
  int present, lane;

  // pieces[f]: this lane's two elements of fragment f.
  __device__ __forceinline__ void store(const u32 (&pieces)[kCount]) const {
    constexpr int kPaired = kCount / 8 * 8;
    if constexpr (kPaired > 0) {
      const RowPair pair(row, present, lane);
#pragma unroll
      for (int f = 0; f < kPaired; f += 8) {
        u32 a[4] = {pieces[f], pieces[f + 1], pieces[f + 2], pieces[f + 3]};
        u32 b[4] = {pieces[f + 4], pieces[f + 5], pieces[f + 6], pieces[f + 7]};
        transpose(a, lane);
        transpose(b, lane);
        pair.store(a, b, f, lane);
      }
    }
#pragma unroll
    for (int f = kPaired; f + 4 <= kCount; f += 4) {
      u32 mine[4] = {pieces[f], pieces[f + 1], pieces[f + 2], pieces[f + 3]};
      transpose(mine, lane);
      const int at = f + lane % 4;
      if (at < present) reinterpret_cast<uint4*>(row)[at] = make_uint4(mine[0], mine[1], mine[2], mine[3]);
    }
#pragma unroll
    for (int f = kCount / 4 * 4; f < kCount; ++f) {
      if (f < present) reinterpret_cast<u32*>(row)[f * 4 + lane % 4] = pieces[f];
    }
  }
  // Loads each element from where the same thread's store() would put it.
  __device__ __forceinline__ void load(u32 (&pieces)[kCount]) const {
#pragma unroll
    for (int f = 0; f + 4 <= kCount; f += 4) {
      const int at = f + lane % 4;
      uint4 got = make_uint4(0, 0, 0, 0);
      if (at < present) got = __ldcg(reinterpret_cast<const uint4*>(row) + at);
      u32 mine[4] = {got.x, got.y, got.z, got.w};
      transpose(mine, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) pieces[f + i] = mine[i];
    }
#pragma unroll
    for (int f = kCount / 4 * 4; f < kCount; ++f) {
      pieces[f] = f < present ? __ldcg(reinterpret_cast<const u32*>(row) + f * 4 + lane % 4) : 0;
    }
  }
};

// Like RowPart, for a row of bytes.
template <RowType kType, int kCount>
struct ByteRowPart {
  unsigned char* row;
  int present, lane;

  // values[f]: this lane's two elements of fragment f, stored as bytes after multiplication by `factor`.
  __device__ __forceinline__ void store(const float2 (&values)[kCount], float factor) const {
    u32 pairs[ceil_div(kCount, 2)];  // fragments 2i and 2i + 1
#pragma unroll
    for (int f = 0; f < kCount; f += 2) {
      const float2 a = values[f], b = f + 1 < kCount ? values[f + 1] : make_float2(0.0f, 0.0f);
      pairs[f / 2] = pack4<kType>(a.x * factor, a.y * factor, b.x * factor, b.y * factor);
    }
    constexpr int kWhole = kCount / 8 * 8;
#pragma unroll
    for (int f = 0; f < kWhole; f += 8) {
      u32 mine[4] = {pairs[f / 2], pairs[f / 2 + 1], pairs[f / 2 + 2], pairs[f / 2 + 3]};
      transpose(mine, lane);
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
