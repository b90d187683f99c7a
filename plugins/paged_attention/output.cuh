// Stores the results of attention: as 16-bit elements of the activations' type or, if TL_Y_TYPE is a type of bytes
// (RowType), quantized with one scale.
//
// TL_Y_FP16 is the type of the activations, which may differ from the type of the products (TL_FP16).
#pragma once

#include "cuda/byte_rows.cuh"

#ifndef TL_Y_FP16
#define TL_Y_FP16 TL_FP16
#endif
#ifndef TL_Y_TYPE
#define TL_Y_TYPE 0
#endif

namespace tl {

// Packs two elements as 16 bits each.
__device__ __forceinline__ u32 pack_y(float lo, float hi) {
#if TL_Y_FP16 == TL_FP16
  return pack2(lo, hi);
#else
  u32 bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(hi), "f"(lo));
  return bits;
#endif
}
__device__ __forceinline__ float2 unpack_y(u32 bits) {
#if TL_Y_FP16 == TL_FP16
  return unpack2(bits);
#else
  return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
#endif
}

struct Output {
  static constexpr RowType kType = static_cast<RowType>(TL_Y_TYPE);
  static constexpr bool kBytes = kType != RowType::k16Bits;
  void* rows;    // [tokens, heads, dim]
  float factor;  // the inverse of the scale of bytes

  // Stores element `at`; two neighbours, packed by pack_y(); or four. `at` is a multiple of their number.
  __device__ __forceinline__ void put(u64 at, float value) const {
    const u32 bits = pack_y(value, 0.0f);
    if constexpr (kBytes) {
      static_cast<unsigned char*>(rows)[at] = static_cast<unsigned char>(bytes(bits, 0));
    } else {
      static_cast<u16*>(rows)[at] = static_cast<u16>(bits);
    }
  }
  __device__ __forceinline__ void put(u64 at, u32 pair) const {
    if constexpr (kBytes) {
      static_cast<u16*>(rows)[at / 2] = static_cast<u16>(bytes(pair, 0));
    } else {
      static_cast<u32*>(rows)[at / 2] = pair;
    }
  }
  __device__ __forceinline__ void put(u64 at, uint2 pairs) const {
    if constexpr (kBytes) {
      static_cast<u32*>(rows)[at / 4] = bytes(pairs.x, pairs.y);
    } else {
      static_cast<uint2*>(rows)[at / 4] = pairs;
    }
  }
  __device__ __forceinline__ u32 bytes(u32 first, u32 second) const {
    const float2 a = unpack_y(first), b = unpack_y(second);
    return pack4<kType>(a.x * factor, a.y * factor, b.x * factor, b.y * factor);
  }
};

}  // namespace tl
