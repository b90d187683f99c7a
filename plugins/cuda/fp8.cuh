// E4M3 numbers (OCP 8-bit Floating Point Specification), from sm_89 on: conversions to them, and their products, which
// tensor cores accumulate in float32.
#pragma once

#include "cuda/mma.cuh"

namespace tl {

constexpr float kLargestE4m3 = 448.0f;

// Packs four numbers as bytes, the first at the lowest address, saturated to the largest magnitude.
__device__ __forceinline__ u32 pack4_e4m3(float a, float b, float c, float d) {
  u16 low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return static_cast<u32>(high) << 16 | low;
}

// Unpacks the low and the high two bytes of `bytes` to float16, which holds E4M3 exactly.
__device__ __forceinline__ void convert_e4m3(u32 bytes, u32& low, u32& high) {
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(low) : "h"(static_cast<u16>(bytes)));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(high) : "h"(static_cast<u16>(bytes >> 16)));
}

// c += a * b like mma() (cuda/mma.cuh), with shape m16n8k32: each fragment register has four bytes instead of two
// elements.
__device__ __forceinline__ void mma_e4m3(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tl
