// The storage formats of weights, and the scales and offsets of the blocks of their rows.
//
// Macros: TL_WEIGHT_FORM and, if rows have blocks, TL_BLOCK (elements of a block), TL_NUMBER_TYPE and TL_OFFSETS (0 or
// 1); TL_PAIRS32 (1: 4-bit integers lie in the layout pairs32 instead of pairs8).
#pragma once

#include "cuda/byte_rows.cuh"

#ifndef TL_BLOCK
#define TL_BLOCK 0
#define TL_NUMBER_TYPE 0
#define TL_OFFSETS 0
#endif
#ifndef TL_PAIRS32
#define TL_PAIRS32 0
#endif

namespace tl {

// The values of TL_WEIGHT_FORM: 16-bit elements; int8 in the layout mma_k16; E4M3 multiplied by E4M3 rows of x; int4 or
// uint4 in the layout pairs8; int8 multiplied by int8 rows of x; E4M3 and E2M1 in the layouts spread_e4m3 and
// spread_e2m1; int8 in the layout mma_k16 with blocks.
enum class WeightForm { k16Bits, kInt8, kE4m3Both, kInt4, kUint4, kInt8Both, kE4m3, kE2m1, kInt8Blocks };
constexpr WeightForm kWeightForm = static_cast<WeightForm>(TL_WEIGHT_FORM);
// 4-bit integers, which are also multiplied by rows of fixed-point numbers (cuda/fixed_rows.cuh).
__host__ __device__ constexpr bool is_short_integer(WeightForm form) {
  return form == WeightForm::kInt4 || form == WeightForm::kUint4;
}
__host__ __device__ constexpr bool is_small_float(WeightForm form) {
  return form == WeightForm::kE4m3 || form == WeightForm::kE2m1;
}
__host__ __device__ constexpr bool has_four_bits(WeightForm form) {
  return is_short_integer(form) || form == WeightForm::kE2m1;
}
__host__ __device__ constexpr bool has_blocks(WeightForm form) {
  return is_short_integer(form) || is_small_float(form) || form == WeightForm::kInt8Blocks;
}
__host__ __device__ constexpr int bits_of(WeightForm form) {
  return form == WeightForm::k16Bits ? 16 : has_four_bits(form) ? 4 : 8;
}
__host__ __device__ constexpr RowType rows_of(WeightForm form) {
  return form == WeightForm::kE4m3Both   ? RowType::kE4m3
         : form == WeightForm::kInt8Both ? RowType::kInt8
                                         : RowType::k16Bits;
}
// Whether a word of 4-bit integers has eight neighbours of a row. Otherwise it has pairs of elements that are eight
// apart, in the order of the tensor cores.
constexpr bool kWordsOfNeighbours = is_short_integer(kWeightForm) && !TL_PAIRS32;
// Whether a weight row has one scale, by which its sums are multiplied.
constexpr bool kScaledRows = kWeightForm == WeightForm::kInt8 || rows_of(kWeightForm) != RowType::k16Bits;

// Sums over parts of the depth, which warps and blocks add up. Those of int8 are added as int32 if TL_ORDERED: they are
// exact, so that every division of the depth gives the same sum. Their bits travel as float32.
constexpr bool kExactParts = TL_ORDERED && kWeightForm == WeightForm::kInt8Both;
__device__ __forceinline__ float part_of(float sum) { return sum; }
__device__ __forceinline__ float part_of(int sum) {
  return kExactParts ? __int_as_float(sum) : static_cast<float>(sum);
}
__device__ __forceinline__ float add_parts(float a, float b) {
  return kExactParts ? __int_as_float(__float_as_int(a) + __float_as_int(b)) : a + b;
}
__device__ __forceinline__ float sum_of_parts(float part) {
  return kExactParts ? static_cast<float>(__float_as_int(part)) : part;
}

// Scales, and offsets if TL_OFFSETS, of blocks of kBlock elements of a row (kBlock 0: there are none). They are stored
// in the layout rows8: for each 8 rows, the numbers of the first block, then those of the next.
enum class NumberType { kFloat32, kFloat16, kBFloat16 };  // the values of TL_NUMBER_TYPE
constexpr NumberType kNumberType = static_cast<NumberType>(TL_NUMBER_TYPE);
constexpr int kBlock = TL_BLOCK, kNumberBytes = kNumberType == NumberType::kFloat32 ? 4 : 2;
constexpr int kBlockBytes = 8 * kNumberBytes;  // bytes of one kind of number for 8 rows of a block
constexpr int kNumberKinds = kBlock == 0 ? 0 : 1 + TL_OFFSETS;
static_assert(has_blocks(kWeightForm) == (kBlock != 0), "the form says whether blocks have numbers");

// The addresses of scales and offsets; null if there are none.
struct BlockNumbers {
  const void* scale;
  const void* offset;
};

// Loads the bits of a number from shared memory; number_of() converts them later, because converting waits for the
// load.
__device__ __forceinline__ u32 load_number_bits(u32 address) {
  if constexpr (kNumberType == NumberType::kFloat32) return __float_as_uint(load_shared_float(address));
  u16 bits;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(address) : "memory");
  return bits;
}
__device__ __forceinline__ float number_of(u32 bits) {
  if constexpr (kNumberType == NumberType::kFloat32) return __uint_as_float(bits);
  if constexpr (kNumberType == NumberType::kBFloat16) return __uint_as_float(bits << 16);
  float number;
  asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(static_cast<u16>(bits)));
  return number;
}
__device__ __forceinline__ float load_number(u32 address) { return number_of(load_number_bits(address)); }

}  // namespace tl
