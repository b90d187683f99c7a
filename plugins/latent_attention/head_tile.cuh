// Multiplies each head's part of a row by the head's own matrix: y[t, h] = x[t, h] @ w[h], where w[h] is stored as [in,
// out] with TL_INPUTS_FIRST, else as [out, in]. It absorbs queries (absorb.cuh), and turns means of latents into
// values.
//
// Bytes: 2 * in * out * heads, once for each TL_ROWS rows (DeepSeek-V2-Lite: 2.1 MB, 0.5 us at 4.47 TB/s; V3: 16.8 MB,
// 3.8 us). FLOPs: 2 * in * out * heads per row (V3: 16.8 MFLOP; 2048 rows: 34 GFLOP, 70 us at the 500 TFLOPS of
// mma.sync). A block has TL_ROWS rows and, in shared memory, TL_COLUMNS columns of a head's matrix, which it loads
// before the previous kernel has ended. Its four warps divide the rows or, if there are 16, the columns. Launch: 128
// threads, kSharedBytes of dynamic shared memory, kTilesOfHeads blocks for each TL_ROWS rows. Macros: TL_HEADS, TL_IN,
// TL_OUT, TL_X_STRIDE, TL_X_HEAD, TL_Y_STRIDE and TL_Y_HEAD (strides of rows and heads in elements), TL_ROWS (16 or
// 64), TL_COLUMNS (a multiple of 16 that divides TL_OUT), TL_INPUTS_FIRST (0 or 1), TL_SHARED_BYTES, TL_FP16.
#pragma once

#include "cuda/async.cuh"

namespace tl {

constexpr int kIn = TL_IN, kColumns = TL_COLUMNS, kRows = TL_ROWS, kThreads = 128;
constexpr int kHeadTiles = TL_OUT / kColumns, kTilesOfHeads = TL_HEADS * kHeadTiles;
constexpr int kColumnWarps = kRows == 16 ? 4 : 1, kTiles = ceil_div(kColumns / 16, kColumnWarps);  // tiles of a warp
constexpr int kWeightRows = TL_INPUTS_FIRST ? kIn : kColumns, kWeightRun = TL_INPUTS_FIRST ? kColumns : kIn;
constexpr u32 kWeightPitch = kWeightRun * 2 + 16, kPitch = kIn * 2 + 16;
constexpr u32 kSharedBytes = kWeightRows * kWeightPitch + kRows * kPitch;
static_assert(kIn % 16 == 0 && kColumns % 16 == 0 && TL_OUT % kColumns == 0 && (kRows == 16 || kRows == 64));
static_assert(TL_SHARED_BYTES >= kSharedBytes, "TL_SHARED_BYTES is too small");

// Copies rows of kRun elements, `stride` elements apart, to rows `pitch` bytes apart. Rows from `present` on are zeros.
template <int kCount, int kRun>
__device__ __forceinline__ void copy_rows(u32 target, u32 pitch, const u16* from, u64 stride, int present) {
  constexpr int kVectors = kRun / 8;
  for (int i = threadIdx.x; i < kCount * kVectors; i += kThreads) {
    const int row = i / kVectors, vector = i % kVectors;
    const bool is_there = row < present;
    copy16(target + row * pitch + vector * 16, from + (is_there ? row * stride : 0) + vector * 8, is_there);
  }
}

// Loads, by ldmatrix, 16 x 16 elements of the weight as operand B of two products.
__device__ __forceinline__ void load_weight(u32 (&b)[4], u32 weight, int column, int k, int lane) {
  if constexpr (TL_INPUTS_FIRST) {
    load_matrix_x4_transposed(b,
                              weight + (k + lane / 8 % 2 * 8 + lane % 8) * kWeightPitch + (column + lane / 16 * 8) * 2);
  } else {
    load_matrix_x4(b, weight + (column + lane / 16 * 8 + lane % 8) * kWeightPitch + (k + lane / 8 % 2 * 8) * 2);
  }
}

// Multiplies rows from `first` on by tile `number` of the columns of all heads.
__device__ __forceinline__ void multiply_head(u16* y, const u16* x, const u16* weight, int number, int first, int rows,
                                              char* memory) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int head = number / kHeadTiles, first_column = number % kHeadTiles * kColumns;
  const u32 weights = shared_address(memory), own = weights + kWeightRows * kWeightPitch;
  const u16* matrix = weight + static_cast<u64>(head) * kIn * TL_OUT;
  matrix += static_cast<u64>(first_column) * (TL_INPUTS_FIRST ? 1 : kIn);
  copy_rows<kWeightRows, kWeightRun>(weights, kWeightPitch, matrix, TL_INPUTS_FIRST ? TL_OUT : kIn, kWeightRows);
  wait_for_previous_kernel();
  allow_next_kernel();
  copy_rows<kRows, kIn>(own, kPitch, x + static_cast<u64>(first) * TL_X_STRIDE + head * TL_X_HEAD, TL_X_STRIDE,
                        rows - first);
  copy_commit();
  copy_wait<0>();
  __syncthreads();
  const int tile = kColumnWarps == 1 ? 0 : warp * kTiles, row = kColumnWarps == 1 ? warp * 16 : 0;
  float sums[2 * kTiles][4] = {};
#pragma unroll 4
  for (int k = 0; k < kIn; k += 16) {
    u32 a[4];
    load_matrix_x4(a, own + (row + lane % 16) * kPitch + (k + lane / 16 * 8) * 2);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (kColumnWarps > 1 && (tile + n) * 16 >= kColumns) break;
      u32 b[4];
      load_weight(b, weights, (tile + n) * 16, k, lane);
      mma(sums[2 * n], a, b[0], b[1]);
      mma(sums[2 * n + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4 * kTiles; ++i) {
    const int n = i / 2, half = i % 2, at = first + row + half * 8 + lane / 4;
    const int column = tile * 16 + n * 8 + lane % 4 * 2;
    if (at >= rows || column >= kColumns) continue;
    u16* to = y + static_cast<u64>(at) * TL_Y_STRIDE + head * TL_Y_HEAD + first_column + column;
    *reinterpret_cast<u32*>(to) = pack2(sums[n][half * 2], sums[n][half * 2 + 1]);
  }
}

}  // namespace tl
