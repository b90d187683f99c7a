// The epilogue of the tiled kernels of gated products. Macros: see gated_linear/tiled.cuh.
#pragma once

#include "cuda/activation.cuh"
#include "cuda/tiled_linear.cuh"

namespace tl {

constexpr RowType kYType = static_cast<RowType>(TL_Y_TYPE);

// A tile has rows of weight[0] and the same number of rows of weight[1] for the same features, so that a thread has
// both sums.
struct TiledGatedOp {
  static constexpr int kParts = 2, kRun = kTileColumns / 2;
  void* y;
  u16* added;  // [rows, 2 * TL_OUT]
  ProductScales scales;
  BlockNumbers numbers;
  float y_factor;

  __device__ __forceinline__ static int weight_row(int first, int column) {
    return column / kRun * TL_OUT + first + column % kRun;
  }
  __device__ __forceinline__ void warm(int column) const {
    scales.warm<kTileColumns / 2>(column, TL_OUT - column);
    scales.warm<kTileColumns / 2>(TL_OUT + column, TL_OUT - column);
  }
  // Adds a row of `added` to the sums. `present` fragments of each half exist.
  template <int kBoth>
  __device__ __forceinline__ void add(float (&sums)[kBoth][4], int row, int column, int present, int half) const {
    constexpr int kCount = kBoth / 2;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      u32 pieces[kCount];
      RowPart<kCount>{added + (static_cast<u64>(row) * 2 + part) * TL_OUT + column, present, lane}.load(pieces);
#pragma unroll
      for (int f = 0; f < kCount; ++f) {
        const float2 more = unpack2(pieces[f]);
        sums[part * kCount + f][half * 2] += more.x;
        sums[part * kCount + f][half * 2 + 1] += more.y;
      }
    }
  }
  template <int kBoth>
  __device__ __forceinline__ void finish(float (&sums)[kBoth][4], int row, int column, int rows, int columns,
                                         float2 row_scales) const {
    constexpr int kCount = kBoth / 2;
    const int lane = threadIdx.x % 32;
    if constexpr (kScaledRows) {
      scales.apply<0, kCount>(sums, 0, column, row_scales);
      scales.apply<kCount, kCount>(sums, 1, column, row_scales);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + half * 8, present = r < rows ? (columns - column) / 8 : 0;
      const u64 at = static_cast<u64>(r) * TL_OUT + column;
      if constexpr (TL_ADDED != 0) add(sums, r, column, present, half);
      float2 values[kCount];
#pragma unroll
      for (int f = 0; f < kCount; ++f) {
        const float (&gate)[4] = sums[f], (&up)[4] = sums[kCount + f];
        values[f] = make_float2(gated<TL_ACTIVATION>(gate[half * 2], up[half * 2]),
                                gated<TL_ACTIVATION>(gate[half * 2 + 1], up[half * 2 + 1]));
      }
      if constexpr (kYType != RowType::k16Bits) {
        ByteRowPart<kYType, kCount>{static_cast<unsigned char*>(y) + at, present, lane}.store(values, y_factor);
      } else {
        u32 pieces[kCount];
#pragma unroll
        for (int f = 0; f < kCount; ++f) pieces[f] = pack2(values[f].x, values[f].y);
        RowPart<kCount>{static_cast<u16*>(y) + at, present, lane}.store(pieces);
      }
    }
  }
};

}  // namespace tl
