// Rows of x as fixed-point numbers: 16-bit integers with a scale for each block, for products with 4-bit weights.
//
// Dequantizing a weight to 16 bits takes more instructions than an SM has time for while its memory delivers it; making
// it a signed byte takes less than half an instruction. So an element of x becomes high * 256 + low, two signed bytes,
// which are two columns of an int8 product with exact sums. An element is rounded by at most 1/65278 of the largest of
// its block, which is less than the rounding of that largest element to 16 bits.
#pragma once

#include "cuda/byte_rows.cuh"
#include "cuda/int8.cuh"
#include "cuda/weight_form.cuh"

namespace tl {

constexpr int kMostFixedTokens = 4;  // the most rows that a GEMV kernel rounds: more take longer than dequantizing the
                                     // weights
constexpr float kLargestWhole = 127 * 256 + 127;
constexpr float kLeastBlockScale = 1e-30f;  // so that a block of zeros has a scale

// Rounds eight elements, multiplied by `factor`, to integers. The high bytes are in x and y, the low bytes in z and w,
// in the order 0 4 1 5, 2 6 3 7: the order of the low and the high nibbles of a word in the layout pairs8.
__device__ __forceinline__ uint4 pack8_whole(const float (&v)[8], float factor) {
  // The last 16 bits of this sum are the integer + 128, so that its high byte is `high` and its low byte `low` + 128.
  u32 raised[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) raised[i] = __float_as_uint(fmaf(v[i], factor, 12582912.0f + 128.0f));
  u32 pairs[4];  // low, low, high, high
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = pick_bytes(raised[i], raised[i + 4], 0x5140);
  return make_uint4(pick_bytes(pairs[0], pairs[1], 0x7632), pick_bytes(pairs[2], pairs[3], 0x7632),
                    pick_bytes(pairs[0], pairs[1], 0x5410) ^ 0x80808080u,
                    pick_bytes(pairs[2], pairs[3], 0x5410) ^ 0x80808080u);
}

// The layout of rows in shared memory for a GEMV kernel: for every 64 neighbours, 64 high bytes and then 64 low bytes,
// each ordered so that the 16 bytes of a lane are contiguous. After the rows, for each block: the scales of the tokens,
// then their sums if TL_OFFSETS.
template <int kIn, int kTokens>
struct FixedRows {
  static constexpr int kBlockK = min_of(kBlock, 128);  // elements of x multiplied at a time
  static constexpr int kNumbers = kIn / max_of(1, kBlockK) * ceil_div(kTokens, 4) * 4;
  static constexpr int kNumberBytes = kNumbers * 4 * (1 + TL_OFFSETS);

  // The place of the high bytes of the eight elements from 8 * `vector` on; their low bytes are 64 bytes further.
  __device__ __forceinline__ static int place(int vector) {
    return vector / 8 * 128 + vector % 4 * 16 + vector / 4 % 2 * 8;
  }
  __device__ __forceinline__ static int number(int block, int token) {
    return block * (ceil_div(kTokens, 4) * 4) + token;
  }

  // Stores vectors of row `m`; the lanes of a warp have neighbouring vectors. `vector(i)` is the index of raw[i] in the
  // row, or negative if the row has no such vector and raw[i] is zero. `put(i, bytes)` stores the result of
  // pack8_whole().
  template <int kCount, class Vector, class Put>
  __device__ __forceinline__ static void store(float* numbers, int m, const uint4 (&raw)[kCount], const Vector& vector,
                                               const Put& put) {
    constexpr int kLanes = max_of(1, kBlockK / 8);
    float largest[kCount], sum[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      largest[i] = largest_magnitude(raw[i]);
      if (TL_OFFSETS) sum[i] = sum_of(raw[i]);
    }
    // The shuffles of all vectors are interleaved: within a vector, each depends on the one before.
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        largest[i] = fmaxf(largest[i], __shfl_xor_sync(0xffffffffu, largest[i], offset));
        if (TL_OFFSETS) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], offset);
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = vector(i);
      if (at < 0) continue;
      const float scale = fmaxf(largest[i] * (1.0f / kLargestWhole), kLeastBlockScale);
      float v[8], factor;
      unpack8(raw[i], v);
      asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(factor) : "f"(scale));
      put(at, pack8_whole(v, factor));
      if (at % kLanes > 0) continue;
      // Signed nibbles are multiplied as 16 times their value.
      numbers[number(at / kLanes, m)] = kWeightForm == WeightForm::kInt4 ? scale * 0.0625f : scale;
      if (TL_OFFSETS) numbers[kNumbers + number(at / kLanes, m)] = sum[i];
    }
  }

 private:
  __device__ __forceinline__ static float sum_of(uint4 raw) {
    float v[8], sum = 0.0f;
    unpack8(raw, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += v[i];
    return sum;
  }
};

}  // namespace tl
