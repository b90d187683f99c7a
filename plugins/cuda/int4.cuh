// 4-bit integer weights, dequantized exactly to the 16-bit type on their way into the tensor cores.
//
// Pair i of a word of eight weights is in nibbles i and i + 4. In the layout pairs8 (plugins/README.md) it is weights
// 2i and 2i + 1 of the word's eight neighbours; in the layout pairs32 it is 8i elements after the first pair.
#pragma once

#include "cuda/int8.cuh"

namespace tl {

// Converts pair kPair of `word` to two elements that are too large by a constant: a nibble combined with the right
// exponent is the number 1024 + nibble in float16, 128 + nibble in bfloat16. For signed nibbles, flipping the sign bit
// adds 8.
template <bool kSigned>
constexpr u32 kRaised = (TL_FP16 ? 0x64006400u : 0x43004300u) | (kSigned ? 0x00080008u : 0);
template <bool kSigned, int kPair>
__device__ __forceinline__ u32 raised_int4(u32 word, u32 mask) {
  return (word >> 4 * kPair & mask) ^ kRaised<kSigned>;
}
// The mask of raised_int4(), in a register: an instruction can take only one constant. The factor, 1 in all launches,
// hides that the mask is one, too: the compiler would take two instructions.
__device__ __forceinline__ u32 pair_mask() { return 0x000f000fu * blockDim.z; }

// Converts pair kPair of `word` to two elements.
template <bool kSigned, int kPair>
__device__ __forceinline__ u32 convert_int4(u32 word, u32 mask) {
  return subtract2<TL_FP16>(raised_int4<kSigned, kPair>(word, mask), kRaised<kSigned>);
}

// a * b + c for two elements, with a single rounding.
__device__ __forceinline__ u32 multiply_add2(u32 a, u32 b, u32 c) {
  u32 result;
#if TL_FP16
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
#endif
  return result;
}

}  // namespace tl
