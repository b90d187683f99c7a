// Weights of four bits, integers, widened exactly to the 16-bit type on their way into the tensor cores.
//
// They lie in the layout pairs8 (plugins/README.md): of a word of eight weights, pair i is neighbours 2i and 2i + 1, in
// nibbles i and i + 4.
#pragma once

#include "cuda/int8.cuh"

namespace tl {

// Pair kPair of `word` as two elements that are too large by a constant. A nibble under the right exponent is a number,
// 1024 + nibble in float16 and 128 + nibble in bfloat16; the sign bit of a nibble, turned, adds 8 to what it means.
template <bool kSigned>
constexpr u32 kRaised = (TL_FP16 ? 0x64006400u : 0x43004300u) | (kSigned ? 0x00080008u : 0);
template <bool kSigned, int kPair>
__device__ __forceinline__ u32 raised_int4(u32 word, u32 mask) {
  return (word >> 4 * kPair & mask) ^ kRaised<kSigned>;
}
// The mask of raised_int4(), in a register: an instruction takes one constant, and the compiler would load this one
// anew for each.
__device__ __forceinline__ u32 pair_mask() {
  u32 mask;
  asm("mov.u32 %0, 0x000f000f;" : "=r"(mask));
  return mask;
}

// Pair kPair of `word` as two elements.
template <bool kSigned, int kPair>
__device__ __forceinline__ u32 widen_int4(u32 word, u32 mask) {
  return subtract2(raised_int4<kSigned, kPair>(word, mask), kRaised<kSigned>);
}

// a * b + c for two elements, each rounded once.
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
