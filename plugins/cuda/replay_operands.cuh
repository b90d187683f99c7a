// Float32 operands of tensor cores, which multiply them in parts; cuda/replay_chunks.cuh says in which.
#pragma once

#include "cuda/mma.cuh"

namespace tl {

// What TF32 leaves of a float32.
__device__ __forceinline__ u32 tf32_rest(u32 bits) {
  return __float_as_uint(__uint_as_float(bits) - __uint_as_float(bits & kTf32Bits));
}

// A pair of successive elements of a float32 right operand, and what TF32 leaves of them: tensor cores take the upper
// bits of the elements themselves.
struct Tf32Pair {
  u32 elements[2], rest[2];

  Tf32Pair() = default;
  __device__ __forceinline__ explicit Tf32Pair(float2 given) {
    elements[0] = __float_as_uint(given.x), elements[1] = __float_as_uint(given.y);
#pragma unroll
    for (int i = 0; i < 2; ++i) rest[i] = tf32_rest(elements[i]);
  }
};

// A float32 left operand of m16n8k8, which was the accumulators `sums`, and what TF32 leaves of it.
struct Tf32Operand {
  static constexpr int kProducts = 3;  // with a float32 right operand

  u32 elements[4], rest[4];

  Tf32Operand() = default;
  __device__ __forceinline__ explicit Tf32Operand(const float (&sums)[4]) {
    const float ordered[4] = {sums[0], sums[2], sums[1], sums[3]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      elements[i] = __float_as_uint(ordered[i]);
      rest[i] = tf32_rest(elements[i]);
    }
  }
  // Adds product number `product` of those with b, whose rows 2i and 2i + 1 follow each other, to c. Successive
  // products should have different sums: tensor cores take long for each.
  __device__ __forceinline__ void multiply(float (&c)[4], const Tf32Pair& b, int product) const {
    const u32(&right)[2] = product == 2 ? b.rest : b.elements;
    mma_tf32(c, product == 1 ? rest : elements, right[0], right[1]);
  }
};

// A float32 left operand for 16 rows of a right operand of 16 bits; it was the accumulators `low` and `high`.
#if TL_FP16
struct LeftOperand {
  static constexpr int kProducts = 4;

  Tf32Operand low, high;

  LeftOperand() = default;
  __device__ __forceinline__ LeftOperand(const float (&low)[4], const float (&high)[4]) : low(low), high(high) {}
  __device__ __forceinline__ void multiply(float (&c)[4], u32 b0, u32 b1, int product) const {
    const float2 b = unpack2(product % 2 == 0 ? b0 : b1);
    const Tf32Operand& left = product % 2 == 0 ? low : high;
    mma_tf32(c, product < 2 ? left.elements : left.rest, __float_as_uint(b.x), __float_as_uint(b.y));
  }
};
#else
struct LeftOperand {
  static constexpr int kProducts = 2;

  u32 parts[kProducts][4];

  LeftOperand() = default;
  __device__ __forceinline__ LeftOperand(const float (&low)[4], const float (&high)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float (&sums)[4] = i < 2 ? low : high;
      float x = sums[i % 2 * 2], y = sums[i % 2 * 2 + 1];
#pragma unroll
      for (int part = 0; part < kProducts; ++part) {
        parts[part][i] = pack2(x, y);
        const float2 taken = unpack2(parts[part][i]);
        x -= taken.x, y -= taken.y;
      }
    }
  }
  // Adds product number `product` with b to c.
  __device__ __forceinline__ void multiply(float (&c)[4], u32 b0, u32 b1, int product) const {
    mma(c, parts[product], b0, b1);
  }
};
#endif

}  // namespace tl
