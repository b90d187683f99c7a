// Attention of up to 16 query rows to 16 keys at a time by one warp: mma.sync with an online softmax.
// Rows are the query heads that share a KV head.
#pragma once

#include "paged_attention/softmax.cuh"

namespace tl {

// Keys and values lie in shared memory as rows of kDim elements, padded by 16 bytes against bank conflicts.
template <int kDim>
struct TileShape {
  static constexpr u32 kPitch = kDim * 2 + 16;
  static constexpr u32 kRowsBytes = 16 * kPitch;
};

// Row halves: a lane holds rows lane / 4 and lane / 4 + 8; the second half is idle work where there are at most 8 rows.
template <int kDim, int kRowHalves>
struct TileState {
  u32 query[kDim / 16][4] = {};
  float output[kDim / 8][4] = {};
  HalvedRowState<kRowHalves> rows;

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) output[i][0] = output[i][1] = output[i][2] = output[i][3] = 0.0f;
    rows = HalvedRowState<kRowHalves>{};
  }

  // Row r of the queries is at `from + r * kDim`; rows past num_rows are zero.
  __device__ __forceinline__ void load_query(const u16* from, int num_rows, int lane) {
#pragma unroll
    for (int half = 0; half < kRowHalves; ++half) {
      const int row = lane / 4 + half * 8;
      if (row >= num_rows) continue;
      const u32* words = reinterpret_cast<const u32*>(from + row * kDim) + lane % 4;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
        query[k][half] = words[k * 8];
        query[k][half + 2] = words[k * 8 + 4];
      }
    }
  }

  // `keys`, `values`: shared memory addresses of 16 rows. Key j counts where low < j <= high. `scale` includes log2(e).
  __device__ __forceinline__ void add(u32 keys, u32 values, int low, int high, float scale, int lane) {
    // Loads ahead of the products that use them, and sums of even and odd steps apart: one warp's latency is what
    // counts.
    constexpr int kSteps = kDim / 16, kBatch = min_of(kSteps, 8);
    const u32 key_row = keys + (lane / 16 * 8 + lane % 8) * TileShape<kDim>::kPitch + lane / 8 % 2 * 16;
    const u32 value_row = values + (lane / 8 % 2 * 8 + lane % 8) * TileShape<kDim>::kPitch + lane / 16 * 16;
    float scores[2][4] = {}, odd[2][4] = {};
    u32 b[kBatch][4];
#pragma unroll
    for (int first = 0; first < kSteps; first += kBatch) {
#pragma unroll
      for (int k = first; k < min_of(first + kBatch, kSteps); ++k) load_matrix_x4(b[k - first], key_row + k * 32);
#pragma unroll
      for (int k = first; k < min_of(first + kBatch, kSteps); ++k) {
        auto& sums = k % 2 == 0 ? scores : odd;
        mma(sums[0], query[k], b[k - first][0], b[k - first][1]);
        mma(sums[1], query[k], b[k - first][2], b[k - first][3]);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) load_matrix_x4_transposed(b[i], value_row + i * 32);
#pragma unroll
    for (int i = 0; i < 8; ++i) scores[i / 4][i % 4] += odd[i / 4][i % 4];
    if (low >= 0 || high < 15) mask_scores(scores, {low, low}, {high, high}, lane);
    u32 weights[1][4] = {};
    rows.add(scores, weights, output, scale);
#pragma unroll
    for (int first = 0; first < kSteps; first += kBatch) {
#pragma unroll
      for (int i = first; i < min_of(first + kBatch, kSteps); ++i) {
        if (first > 0) load_matrix_x4_transposed(b[i - first], value_row + i * 32);
        mma(output[2 * i], weights[0], b[i - first][0], b[i - first][1]);
        mma(output[2 * i + 1], weights[0], b[i - first][2], b[i - first][3]);
      }
    }
  }
};

}  // namespace tl
