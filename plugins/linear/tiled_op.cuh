// The epilogue of the tiled kernels of products. Macros: see linear/tiled.cuh.
#pragma once

#include "cuda/activation.cuh"
#include "cuda/peer_rows.cuh"
#include "cuda/tiled_linear.cuh"

namespace tl {

// One of the two rows for which a thread has sums: where it is stored, and how many of its fragments exist.
struct Half {
  u16 *to, *residual;
  int present;
};

// y may alias residual: every element is read and written by the same thread.
struct TiledLinearOp {
  static constexpr int kParts = 1, kRun = kTileColumns;
  static constexpr bool kPairs = PeerRows::kStride % 2 == 0;  // rows begin at even elements
  static_assert(!TL_FLOAT_OUT || !TL_RESIDUAL, "a residual is added to 16-bit rows only");
  static_assert(!TL_ACTIVATION || !TL_RESIDUAL, "a residual is added after the activation, and no kernel does both");
  PeerRows y;
  const float* bias;
  u16* residual;
  ProductScales scales;
  BlockNumbers numbers;

  __device__ __forceinline__ static int weight_row(int first, int column) { return first + column; }
  __device__ __forceinline__ void warm(int column) const { scales.warm<kTileColumns>(column, TL_OUT - column); }
  template <int kCount>
  __device__ __forceinline__ void add_bias(float (&sums)[kCount][4], int column) const {
#pragma unroll
    for (int f = 0; f < kCount; ++f) {
      float2 both = make_float2(0.0f, 0.0f);
      if (column + f * 8 < TL_OUT) both = reinterpret_cast<const float2*>(bias + column)[f * 4 + threadIdx.x % 4];
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[f][i] += i % 2 == 0 ? both.x : both.y;
    }
  }
  // Stores fragments of two rows, `halves`, kMost at a time, which bounds the registers needed for a residual. The
  // residual of both rows is loaded before either row is stored, because y may alias it.
  template <int kFirst, int kAll>
  __device__ __forceinline__ void store(const float (&sums)[kAll][4], const Half (&halves)[2]) const {
    constexpr int kMost = 8, kCount = min_of(kAll - kFirst, kMost);
    const int lane = threadIdx.x % 32;
    u32 pieces[2][kCount] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Half& half = halves[h];
      if (TL_RESIDUAL) RowPart<kCount>{half.residual + kFirst * 8, half.present - kFirst, lane}.load(pieces[h]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Half& half = halves[h];
#pragma unroll
      for (int f = 0; f < kCount; ++f) {
        const float2 more = TL_RESIDUAL ? unpack2(pieces[h][f]) : make_float2(0.0f, 0.0f);
        const float (&sum)[4] = sums[kFirst + f];
        pieces[h][f] = pack2(sum[h * 2] + more.x, sum[h * 2 + 1] + more.y);
      }
      RowPart<kCount>{half.to + kFirst * 8, half.present - kFirst, lane}.store(pieces[h]);
    }
    if constexpr (kFirst + kCount < kAll) store<kFirst + kCount>(sums, halves);
  }
  // Stores `present` elements of a row.
  template <int kCount>
  __device__ __forceinline__ void store_float(const float (&sums)[kCount][4], float* to, int present, int half) const {
    constexpr int kPaired = PeerRows::kStride % 4 == 0 ? kCount / 4 * 4 : 0;
    const int lane = threadIdx.x % 32;
    if constexpr (kPaired > 0) {
      const RowPair pair(to, present / 4, lane);
#pragma unroll
      for (int f = 0; f < kPaired; f += 4) {
        const auto of = [&](int i) { return make_float2(sums[f + i][half * 2], sums[f + i][half * 2 + 1]); };
        u32 a[4], b[4];
        join_quad(of(0), of(1), a, lane);
        join_quad(of(2), of(3), b, lane);
        pair.store(a, b, f * 2, lane);
      }
    }
#pragma unroll
    for (int f = kPaired; f < kCount; ++f) {
      const int at = f * 8 + threadIdx.x % 4 * 2;
      const float2 both = make_float2(sums[f][half * 2], sums[f][half * 2 + 1]);
      if (kPairs && at < present) *reinterpret_cast<float2*>(to + at) = both;
      if (!kPairs && at < present) to[at] = both.x;
      if (!kPairs && at + 1 < present) to[at + 1] = both.y;
    }
  }
  template <int kCount>
  __device__ __forceinline__ void finish(float (&sums)[kCount][4], int row, int column, int rows, int columns,
                                         float2 row_scales) const {
    if constexpr (kScaledRows) scales.apply<0, kCount>(sums, 0, column, row_scales);
    if (TL_BIAS) add_bias(sums, column);
    if constexpr (TL_ACTIVATION != 0) {
#pragma unroll
      for (int f = 0; f < kCount; ++f) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[f][i] = activate<TL_ACTIVATION>(sums[f][i]);
      }
    }
    Half halves[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + h * 8, present = r < rows ? min_of(columns, y.columns()) - column : 0;
      if constexpr (TL_FLOAT_OUT) {
        store_float(sums, y.row<float>(r) + column, present, h);
      } else {
        halves[h] = {y.row<u16>(r) + column, residual + static_cast<u64>(r) * TL_OUT + column, present / 8};
      }
    }
    if constexpr (!TL_FLOAT_OUT) store<0>(sums, halves);
  }
};

}  // namespace tl
