// Weights of four bits, integers, widened exactly to the 16-bit type on their way into the tensor cores.
//
// They lie in the layout mma_k32 (plugins/README.md). Of a word of eight weights, pair i
// is nibbles i and i + 4, for i in 0..3: neighbours of a row, and of pairs 2s and 2s + 1 a lane of mma.m16n8k16 takes
// both in the product of 16 elements s of 32.
#pragma once

#include "cuda/int8.cuh"

namespace tl {

// Pair kPair of `word` as two elements that are too large by a constant. A nibble under the right exponent is a number,
// 1024 + nibble in float16 and 128 + nibble in bfloat16; the sign bit of a nibble, turned, adds 8 to what it means.
template <bool kSigned>
constexpr u32 kRaised = (TL_FP16 ? 0x64006400u : 0x43004300u) | (kSigned ? 0x00080008u : 0);
template <bool kSigned, int kPair>
__device__ __forceinline__ u32 raised_int4(u32 word) {
  return (word >> 4 * kPair & 0x000f000fu) ^ kRaised<kSigned>;
}

// Pair kPair of `word` as two elements.
template <bool kSigned, int kPair>
__device__ __forceinline__ u32 widen_int4(u32 word) {
  return subtract2(raised_int4<kSigned, kPair>(word), kRaised<kSigned>);
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
