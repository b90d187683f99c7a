// Integer names and the 16-bit element type that a kernel is compiled for.
//
// TL_FP16 = 1 selects IEEE half, 0 bfloat16. Elements are raw bits: the conversions below are single instructions, and
// kernels that need no CUDA header compile anywhere with nothing but NVRTC.
//
// TL_ORDERED = 1: kernels of products for few rows and for many give a row the same bits. What they compute with the
// sums then takes the same operations, and the compiler must not contract a product and a sum in one kernel alone.
#pragma once

#ifndef TL_FP16
#define TL_FP16 0
#endif
#ifndef TL_ORDERED
#define TL_ORDERED 0
#endif

namespace tl {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// Two elements in one register: the low half is the one at the lower address.
__device__ __forceinline__ float2 unpack2(u32 bits) {
#if TL_FP16
  float2 value;
  asm("{\n.reg .f16 lo, hi;\nmov.b32 {lo, hi}, %2;\ncvt.f32.f16 %0, lo;\ncvt.f32.f16 %1, hi;\n}"
      : "=f"(value.x), "=f"(value.y)
      : "r"(bits));
  return value;
#else
  return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
#endif
}

__device__ __forceinline__ u32 pack2(float lo, float hi) {
  u32 bits;
#if TL_FP16
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(hi), "f"(lo));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(hi), "f"(lo));
#endif
  return bits;
}

__device__ __forceinline__ u32 pack2_float16(float lo, float hi) {
  u32 bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(hi), "f"(lo));
  return bits;
}

__device__ __forceinline__ u16 pack1(float value) { return static_cast<u16>(pack2(value, 0.0f)); }
__device__ __forceinline__ float unpack1(u16 bits) { return unpack2(bits).x; }

__device__ __forceinline__ void unpack8(uint4 bits, float (&values)[8]) {
  const u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack2(words[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ uint4 pack8(const float (&values)[8]) {
  return make_uint4(pack2(values[0], values[1]), pack2(values[2], values[3]), pack2(values[4], values[5]),
                    pack2(values[6], values[7]));
}

// a * b, which is never contracted with a sum if TL_ORDERED.
__device__ __forceinline__ float rounded_product(float a, float b) { return TL_ORDERED ? __fmul_rn(a, b) : a * b; }

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int min_of(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
__host__ __device__ constexpr int gcd_of(int a, int b) { return b == 0 ? a : gcd_of(b, a % b); }

// Returns a value that all lanes have, in a way that tells the compiler so. Descriptors made from it stay in uniform
// registers, instead of being moved there between the products.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

}  // namespace tl
