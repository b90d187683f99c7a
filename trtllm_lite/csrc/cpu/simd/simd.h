// The vector operations of the CPU kernels, on one type of float vector: as wide as the instruction set that this is
// compiled for allows.
//
// Each plugin's cpu.cc is compiled once per instruction set (isas.cmake), whose name is TL_ISA. Everything here lives
// in namespace tl::TL_ISA, so that the linker can never hand a machine a function compiled for a wider one; for the
// same reason kernels use no std templates. Compile with -ffp-contract=off: a product and a sum are fused exactly where
// fma() says so, or results would depend on which loop the compiler happened to fuse.
//
// Vec is a native vector type: + - * / work lane by lane.
#pragma once

#include <cstdint>

#define TL_INLINE inline __attribute__((always_inline))

namespace tl {

// Storage types of weights; arithmetic happens in float.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};
// A sign, 4 bits of exponent, 3 of fraction. Interpreted as the top bits of a Float16, they mean 2^-8 times the number,
// also for subnormals. Weights are finite.
struct Float8E4m3 {
  std::uint8_t bits;
};
// Eight neighbouring 4-bit elements of a row, the first in the low bits; two's complement if signed.
struct Int4Word {
  std::uint32_t bits;
};
struct UInt4Word {
  std::uint32_t bits;
};
// Eight elements with a sign, 2 bits of exponent and 1 of fraction (E2M1): 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their
// negatives.
struct Float4Word {
  std::uint32_t bits;
};

}  // namespace tl

#if defined(__AVX512F__)
#include "cpu/simd/avx512.h"
#elif defined(__AVX2__)
#include "cpu/simd/avx2.h"
#else
#include "cpu/simd/portable.h"
#endif

namespace tl::TL_ISA {

TL_INLINE Vec zero() { return broadcast(0.0f); }

// The largest number of a storage type.
template <typename T>
constexpr float kLargest = 0.0f;
template <>
inline constexpr float kLargest<BFloat16> = 0x1.fep127f;
template <>
inline constexpr float kLargest<Float16> = 65504.0f;

// Rounds to nearest, ties to even; what would become infinite becomes the largest number of its sign. NaN stays NaN.
template <typename T>
TL_INLINE void store(T* p, Vec x) {
  store_rounded(p, max(broadcast(-kLargest<T>), min(broadcast(kLargest<T>), x)));
}
// What store() leaves of x.
template <typename T>
TL_INLINE Vec rounded(Vec x, const T*) {
  T lanes[kLanes];
  store(lanes, x);
  return load(lanes);
}

// Only the first n lanes touch memory; the others load as zero.
template <typename T>
TL_INLINE Vec load_first(const T* p, std::int64_t n) {
  if (n >= kLanes) return load(p);
  T lanes[kLanes] = {};
  for (std::int64_t lane = 0; lane < n; ++lane) lanes[lane] = p[lane];
  return load(lanes);
}
template <typename T>
TL_INLINE void store_first(T* p, Vec x, std::int64_t n) {
  if (n >= kLanes) return store(p, x);
  T lanes[kLanes];
  store(lanes, x);
  for (std::int64_t lane = 0; lane < n; ++lane) p[lane] = lanes[lane];
}

// Elements of a row in one stored item.
template <typename Weight>
constexpr int kElements = 1;
template <>
inline constexpr int kElements<Int4Word> = 8;
template <>
inline constexpr int kElements<UInt4Word> = 8;
template <>
inline constexpr int kElements<Float4Word> = 8;

// load_lowered() gives 2^-8 times the numbers, which is what their bits mean in a Float16.
constexpr float kRaise = 0x1p8f;
TL_INLINE Vec load(const Float8E4m3* p) { return load_lowered(p) * broadcast(kRaise); }

// Loads items of which a product sums up multiples, and the number by which the sums are then to be multiplied.
template <typename Weight>
TL_INLINE auto load_item(const Weight* p) {
  return load(p);
}
TL_INLINE Vec load_item(const Float8E4m3* p) { return load_lowered(p); }
template <typename Weight>
constexpr float kItemFactor = 1.0f;
template <>
inline constexpr float kItemFactor<Float8E4m3> = kRaise;

// Element kIndex of each lane's item.
template <int kIndex>
TL_INLINE Vec element(Vec x) {
  return x;
}
template <int kIndex, typename Word>
TL_INLINE Vec element(Words<Word> words) {
  return nibble<kIndex>(words);
}

// x = n ln2 + r with |r| <= ln2/2 (two-term reduction of Cody and Waite, "Software Manual for the Elementary
// Functions", 1980), and (e^r - 1) / r by the Taylor series of e^r, whose first omitted term is below 2^-27.
struct ReducedExp {
  Vec n, r, slope;
};

TL_INLINE ReducedExp reduce_exp(Vec x) {
  const Vec n = round(x * broadcast(1.44269504f));
  Vec r = fma(n, broadcast(-0.693359375f), x);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec sum = broadcast(1.0f / 5040.0f);
  sum = fma(sum, r, broadcast(1.0f / 720.0f));
  sum = fma(sum, r, broadcast(1.0f / 120.0f));
  sum = fma(sum, r, broadcast(1.0f / 24.0f));
  sum = fma(sum, r, broadcast(1.0f / 6.0f));
  sum = fma(sum, r, broadcast(0.5f));
  return {n, r, fma(sum, r, broadcast(1.0f))};
}

// e^x to about 1 ulp. exp(0) == 1 and exp(-inf) == 0 exactly; NaN stays NaN; x > 88.37 gives e^88.37.
TL_INLINE Vec exp(Vec x) {
  const ReducedExp e = reduce_exp(max(broadcast(-104.0f), min(broadcast(88.37f), x)));
  return scale_by_power_of_two(fma(e.slope, e.r, broadcast(1.0f)), e.n);
}

// tanh(x) to a few ulps, also for small x: (e^2x - 1) / (e^2x + 1), where e^2x - 1 is computed without cancellation.
// NaN stays NaN; beyond |x| = 10 the result is exactly 1 or -1.
TL_INLINE Vec tanh(Vec x) {
  const ReducedExp e = reduce_exp(max(broadcast(-20.0f), min(broadcast(20.0f), x + x)));
  const Vec power = scale_by_power_of_two(broadcast(1.0f), e.n);
  const Vec exp_minus_1 = fma(power, e.slope * e.r, power - broadcast(1.0f));
  return exp_minus_1 / (exp_minus_1 + broadcast(2.0f));
}

// x / (1 + e^-x)
TL_INLINE Vec silu(Vec x) { return x / (broadcast(1.0f) + exp(zero() - x)); }

TL_INLINE constexpr std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
TL_INLINE std::int64_t max(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
TL_INLINE constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace tl::TL_ISA
