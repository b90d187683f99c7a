// Weights in E4M3 and E2M1 (OCP 8-bit Floating Point and Microscaling Formats Specifications), dequantized exactly to
// the 16-bit type on their way into the tensor cores.
//
// If the bits of such a number are placed in the sign, the lowest exponent bits and the highest fraction bits of a
// 16-bit element, the element is the number times a power of two; this holds for subnormal numbers too. Layouts spread
// the bits of a word so that one mask extracts a pair of elements (plugins/spread.py). Instructions for a pair of
// bfloat16: 2.5 on average for E4M3 (1 and 4), 2.25 for E2M1 (1, 2, 2 and 4). float16 takes two more.
//
// GEMV kernels multiply these small elements as they are, and the sums by the missing factor. Tensor cores accept
// subnormal numbers, but the sums would be subnormal too and lose bits: so rows of bfloat16 are multiplied by
// 2^kRowsRaisedBy, which is exact. Tiled kernels multiply elements by their block's scale times that factor.
//
// Weights have no NaN: the builder refuses them.
#pragma once

#include "cuda/int4.cuh"
#include "cuda/weight_form.cuh"

namespace tl {

// The magnitude bits of a pair in bfloat16, and (kRaise) the factor 2^kLoweredBy for a pair of the 16-bit type.
constexpr u32 kMagnitudes = kWeightForm == WeightForm::kE2m1 ? 0x01c001c0u : 0x07f007f0u;
constexpr u32 kSigns = 0x80008000u;
constexpr int kLoweredBy = kWeightForm == WeightForm::kE2m1 ? (TL_FP16 ? 14 : 126) : (TL_FP16 ? 8 : 120);
constexpr u32 kRaise = (TL_FP16 ? (kLoweredBy + 15) << 10 : (kLoweredBy + 127) << 7) * 0x00010001u;

constexpr int kRowsRaisedBy = TL_FP16 ? 0 : 60;

// 2^kExponent.
template <int kExponent>
constexpr float kPower = 2.0f * kPower<kExponent - 1>;
template <>
constexpr float kPower<0> = 1.0f;

// The factor of sums of lowered elements and raised rows; 1 if weights are neither E4M3 nor E2M1.
constexpr float kSumFactor = is_small_float(kWeightForm) ? kPower<kLoweredBy - kRowsRaisedBy> : 1.0f;

// Converts a pair placed as in bfloat16 to the 16-bit type: float16 has three more fraction bits.
__device__ __forceinline__ u32 of_type(u32 pair) { return TL_FP16 ? pair + (pair & kMagnitudes) * 7 : pair; }

// Pair kPair of a word of four elements in the layout spread_e4m3 (0: the first two, 1: the others), too small by a
// factor 2^kLoweredBy.
template <int kPair>
__device__ __forceinline__ u32 lowered_e4m3(u32 word) {
  return of_type(kPair == 0 ? word & 0x87f087f0u : (word << 4 & 0x80f080f0u) | (word >> 4 & 0x07000700u));
}

// Pair kPair of a word of eight elements in the layout spread_e2m1, likewise too small. In the row, it is 8 * kPair
// elements after the first pair.
template <int kPair>
__device__ __forceinline__ u32 lowered_e2m1(u32 word) {
  constexpr u32 kMask = kSigns | 0x01c001c0u;
  if constexpr (kPair == 3) return of_type((word << 6 & 0x80c080c0u) | (word >> 2 & 0x01000100u));
  return of_type((kPair == 0 ? word : kPair == 1 ? word << 4 : word << 10 | word >> 22) & kMask);
}

__device__ __forceinline__ u32 multiply2(u32 a, u32 b) { return multiply_add2(a, b, kSigns); }  // adds minus zero
template <int kPair>
__device__ __forceinline__ u32 convert_e4m3(u32 word) {
  return multiply2(lowered_e4m3<kPair>(word), kRaise);
}
template <int kPair>
__device__ __forceinline__ u32 convert_e2m1(u32 word) {
  return multiply2(lowered_e2m1<kPair>(word), kRaise);
}

// A block's scale times 2^kLoweredBy, for both elements of a pair.
__device__ __forceinline__ u32 raised_pair(float factor) {
  return pack2(factor * kPower<kLoweredBy>, factor * kPower<kLoweredBy>);
}

// Like raised_pair(), from the bits of a number (cuda/weight_form.cuh).
__device__ __forceinline__ u32 raised_pair_of(u32 bits) {
  if constexpr (kNumberType == NumberType::kBFloat16 && !TL_FP16) return multiply2(bits * 0x00010001u, kRaise);
  return raised_pair(number_of(bits));
}

// A pair of elements of a row of x, multiplied by 2^kRowsRaisedBy where weights need it.
__device__ __forceinline__ u32 raised_row(u32 pair) {
  constexpr u32 kFactor = (kRowsRaisedBy + 127) << 7;
  return is_small_float(kWeightForm) && kRowsRaisedBy > 0 ? multiply2(pair, kFactor * 0x00010001u) : pair;
}
__device__ __forceinline__ uint4 raised_rows(uint4 pairs) {
  return make_uint4(raised_row(pairs.x), raised_row(pairs.y), raised_row(pairs.z), raised_row(pairs.w));
}

}  // namespace tl
