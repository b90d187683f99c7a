// int8 weights (-128..127), dequantized exactly to the 16-bit type on their way into the tensor cores.
#pragma once

#include "cuda/mma.cuh"

namespace tl {

__device__ __forceinline__ u32 pick_bytes(u32 low, u32 high, u32 selector) {
  u32 picked;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(picked) : "r"(low), "r"(high), "r"(selector));
  return picked;
}

// a - b for two elements of float16, or of bfloat16.
template <bool kFp16>
__device__ __forceinline__ u32 subtract2(u32 a, u32 b) {
  u32 difference;
  if constexpr (kFp16) {
    asm("sub.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(difference) : "r"(b), "r"(0xbf80bf80u), "r"(a));  // a + b * -1
  }
  return difference;
}

// Converts bytes 0 and 1 of `bytes` to the elements of `first`, bytes 2 and 3 to those of `second`.
//
// A byte combined with the right exponent is a number: in float16, 1024 + (byte + 128). bfloat16 has only seven
// fraction bits: the byte's low seven bits make 128 + low, and its sign bit becomes the lowest exponent bit, which
// selects 128 or 256.
template <bool kFp16 = TL_FP16>
__device__ __forceinline__ void convert_int8(u32 bytes, u32& first, u32& second) {
  if constexpr (kFp16) {
    const u32 shifted = bytes ^ 0x80808080u;
    first = subtract2<true>(pick_bytes(shifted, 0x64646464u, 0x4140), 0x64806480u);
    second = subtract2<true>(pick_bytes(shifted, 0x64646464u, 0x4342), 0x64806480u);
  } else {
    const u32 low = pick_bytes(bytes, 0x43434343u, 0x4140), high = pick_bytes(bytes, 0x43434343u, 0x4342);
    first = subtract2<false>(low & 0xff7fff7fu, low & 0xff80ff80u);
    second = subtract2<false>(high & 0xff7fff7fu, high & 0xff80ff80u);
  }
}

}  // namespace tl
