// One warp of attention on tensor cores: rows of queries in shared memory against keys and values that are brought
// there step by step.
#pragma once

#include "cuda/softmax.cuh"

namespace tl {

// The warp has kTiles tiles of 16 query rows; a step has kStep keys. Rows of kDim elements are kPitch bytes apart. Of
// the output it makes kOutput columns.
template <int kDim, int kTiles, int kStep, int kOutput = kDim>
struct AttendingWarp {
  static constexpr u32 kPitch = kDim * 2 + 16;
  static_assert(kDim % 16 == 0 && kStep % 16 == 0 && kOutput % 16 == 0);

  float output[kTiles][kOutput / 8][4] = {};
  RowState rows[kTiles];

  // Computes the scores of kStep keys and adds to the output. `query`, `keys` and `values` are shared-memory addresses,
  // the last one of the output's first column.
  // adjust(t, scores) may change the products of tile t before they are multiplied by `factor`, which makes them
  // exponents of two: scores[i / 4][i % 4] is row lane / 4 + 8 * (i % 4 / 2), key i / 4 * 8 + lane % 4 * 2 + i % 2.
  template <typename Adjust>
  __device__ __forceinline__ void step(u32 query, u32 keys, u32 values, float factor, const Adjust& adjust, int lane) {
    float scores[kTiles][kStep / 8][4] = {};
    multiply_keys(scores, query, keys, lane);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) adjust(t, scores[t]);
    u32 weights[kTiles][kStep / 16][4];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) rows[t].add(scores[t], weights[t], output[t], factor);
    const u32 value_row = values + (lane / 8 % 2 * 8 + lane % 8) * kPitch + lane / 16 * 16;
#pragma unroll
    for (int n = 0; n < kStep / 16; ++n) {
#pragma unroll
      for (int d = 0; d < kOutput / 16; ++d) {
        u32 b[4];
        load_matrix_x4_transposed(b, value_row + n * 16 * kPitch + d * 32);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          mma(output[t][2 * d], weights[t][n], b[0], b[1]);
          mma(output[t][2 * d + 1], weights[t][n], b[2], b[3]);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ static void multiply_keys(float (&scores)[kTiles][kStep / 8][4], u32 query, u32 keys,
                                                       int lane) {
    const u32 query_row = query + (lane % 16) * kPitch + lane / 16 * 16;
    const u32 key_row = keys + (lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 16;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      u32 q[kTiles][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) load_matrix_x4(q[t], query_row + t * 16 * kPitch + k * 32);
#pragma unroll
      for (int n = 0; n < kStep / 16; ++n) {
        u32 b[4];
        load_matrix_x4(b, key_row + n * 16 * kPitch + k * 32);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          mma(scores[t][2 * n], q[t], b[0], b[1]);
          mma(scores[t][2 * n + 1], q[t], b[2], b[3]);
        }
      }
    }
  }
};

}  // namespace tl
