// Rows of activations in eight bits, E4M3 or int8: quantization, and products of int8.
#pragma once

#include "cuda/fp8.cuh"

namespace tl {

// The values of TL_Y_TYPE, TL_CACHE_TYPE (paged_attention/cache.cuh) and TL_ROW_TYPE (cuda/wgmma.cuh).
enum class RowType { k16Bits, kE4m3, kInt8 };

// The accumulator type of products. int32 sums of int8 are exact.
template <RowType kType>
struct Sums {
  using Type = float;
};
template <>
struct Sums<RowType::kInt8> {
  using Type = int;
};
template <RowType kType>
using SumOf = typename Sums<kType>::Type;

template <RowType kType>
constexpr float kLargest = kType == RowType::kInt8 ? 127.0f : kLargestE4m3;

// Packs four numbers as bytes, rounded to nearest and saturated to the type's range.
__device__ __forceinline__ u32 pack4_int8(float a, float b, float c, float d) {
  int whole[4];
  const float values[4] = {a, b, c, d};
#pragma unroll
  for (int i = 0; i < 4; ++i) asm("cvt.rni.s32.f32 %0, %1;" : "=r"(whole[i]) : "f"(values[i]));
  u32 high, bytes;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(high) : "r"(whole[3]), "r"(whole[2]), "r"(0));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(whole[1]), "r"(whole[0]), "r"(high));
  return bytes;
}
template <RowType kType>
__device__ __forceinline__ u32 pack4(float a, float b, float c, float d) {
  return kType == RowType::kInt8 ? pack4_int8(a, b, c, d) : pack4_e4m3(a, b, c, d);
}

// Quantizes eight 16-bit elements, multiplied by `factor`, to bytes.
template <RowType kType>
__device__ __forceinline__ uint2 pack8_bytes(uint4 elements, float factor) {
  float v[8];
  unpack8(elements, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] *= factor;
  return make_uint2(pack4<kType>(v[0], v[1], v[2], v[3]), pack4<kType>(v[4], v[5], v[6], v[7]));
}

__device__ __forceinline__ float largest_magnitude(uint4 elements) {
  float v[8], largest = 0.0f;
  unpack8(elements, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(v[i]));
  return largest;
}

// The scale of a row whose largest magnitude is `largest`. It is at least `least`, so that a row of zeros has a scale.
template <RowType kType>
__device__ __forceinline__ float scale_of_row(float largest, float least) {
  return fmaxf(largest * (1.0f / kLargest<kType>), least);
}

// c += a * b like mma() (cuda/mma.cuh), with shape m16n8k32: each fragment register has four bytes instead of two
// elements.
__device__ __forceinline__ void mma_int8(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tl
