// simd.h in the vector extension of GCC and Clang: 4 lanes, the width of SSE2 and NEON.
#pragma once

#include <cstdint>

namespace tl::TL_ISA {

typedef float Vec __attribute__((vector_size(16)));
typedef std::int32_t IntVec __attribute__((vector_size(16)));
typedef std::uint32_t BitsVec __attribute__((vector_size(16)));
typedef std::uint16_t HalfVec __attribute__((vector_size(8)));
typedef std::int8_t ByteVec __attribute__((vector_size(4)));
typedef std::uint8_t UnsignedByteVec __attribute__((vector_size(4)));
constexpr int kLanes = 4;
// The most accumulators of a register-blocked loop; the other registers are for operands.
constexpr int kMaxAccumulators = 12;

TL_INLINE Vec broadcast(float x) { return Vec{x, x, x, x}; }

TL_INLINE Vec load(const float* p) {
  Vec x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
TL_INLINE BitsVec load_bits(const void* p) {
  HalfVec bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return __builtin_convertvector(bits, BitsVec);
}
TL_INLINE Vec load(const BFloat16* p) { return reinterpret_cast<Vec>(load_bits(p) << 16); }

// Exponent and fraction, moved into place, make a float that is too small by 2^112, also for subnormals. The exponent
// 31 of infinities and NaNs becomes 255.
TL_INLINE Vec load(const Float16* p) {
  const BitsVec bits = load_bits(p);
  const BitsVec magnitude = (bits & 0x7fff) << 13;
  const Vec finite = reinterpret_cast<Vec>(magnitude) * broadcast(0x1p112f);
  const BitsVec special = magnitude | 0x7f800000;
  const BitsVec is_special = reinterpret_cast<BitsVec>(magnitude >= (31u << 23));
  const BitsVec absolute = (special & is_special) | (reinterpret_cast<BitsVec>(finite) & ~is_special);
  return reinterpret_cast<Vec>(absolute | ((bits & 0x8000) << 16));
}
TL_INLINE Vec load(const std::int8_t* p) {
  ByteVec bytes;
  __builtin_memcpy(&bytes, p, sizeof(bytes));
  return __builtin_convertvector(bytes, Vec);
}
TL_INLINE Vec load_lowered(const Float8E4m3* p) {
  UnsignedByteVec bytes;
  __builtin_memcpy(&bytes, p, sizeof(bytes));
  const BitsVec bits = __builtin_convertvector(bytes, BitsVec);
  const Vec magnitude = reinterpret_cast<Vec>((bits & 0x7f) << 20) * broadcast(0x1p112f);
  return reinterpret_cast<Vec>(reinterpret_cast<BitsVec>(magnitude) | ((bits & 0x80) << 24));
}

// A word of each lane's row; nibble<i>() is element i of each word.
template <typename Word>
struct Words {
  BitsVec bits;
};
template <typename Word>
TL_INLINE Words<Word> load_words(const Word* p) {
  Words<Word> words;
  __builtin_memcpy(&words.bits, p, sizeof(words.bits));
  return words;
}
TL_INLINE Words<Int4Word> load(const Int4Word* p) { return load_words(p); }
TL_INLINE Words<UInt4Word> load(const UInt4Word* p) { return load_words(p); }
TL_INLINE Words<Float4Word> load(const Float4Word* p) { return load_words(p); }
template <int kIndex>
TL_INLINE Vec nibble(Words<Int4Word> words) {
  return __builtin_convertvector(reinterpret_cast<IntVec>(words.bits << (28 - 4 * kIndex)) >> 28, Vec);
}
template <int kIndex>
TL_INLINE Vec nibble(Words<UInt4Word> words) {
  return __builtin_convertvector(reinterpret_cast<IntVec>((words.bits >> (4 * kIndex)) & 15), Vec);
}
// As float32, the bits mean 2^-126 times the number, also for subnormals.
template <int kIndex>
TL_INLINE Vec nibble(Words<Float4Word> words) {
  const BitsVec bits = words.bits >> (4 * kIndex);
  const Vec magnitude = reinterpret_cast<Vec>((bits & 7) << 22) * broadcast(0x1p126f);
  return reinterpret_cast<Vec>(reinterpret_cast<BitsVec>(magnitude) | ((bits & 8) << 28));
}
TL_INLINE void store(float* p, Vec x) { __builtin_memcpy(p, &x, sizeof(x)); }
TL_INLINE void store_rounded(BFloat16* p, Vec x) {
  const BitsVec bits = reinterpret_cast<BitsVec>(x);
  const BitsVec is_nan = reinterpret_cast<BitsVec>((bits & 0x7fffffff) > 0x7f800000u);
  const BitsVec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const HalfVec halves = __builtin_convertvector((rounded & ~is_nan) | (0x7fc0u & is_nan), HalfVec);
  __builtin_memcpy(p, &halves, sizeof(halves));
}

// Below 2^-14, adding 2^-1 rounds to multiples of 2^-24, the subnormal numbers.
TL_INLINE void store_rounded(Float16* p, Vec x) {
  const BitsVec bits = reinterpret_cast<BitsVec>(x);
  const BitsVec magnitude = bits & 0x7fffffff;
  const BitsVec is_nan = reinterpret_cast<BitsVec>(magnitude > 0x7f800000u);
  const BitsVec is_small = reinterpret_cast<BitsVec>(magnitude < 0x38800000u);
  const BitsVec small = reinterpret_cast<BitsVec>(reinterpret_cast<Vec>(magnitude) + broadcast(0.5f)) - 0x3f000000;
  const BitsVec normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const BitsVec number = (small & is_small) | (normal & ~is_small);
  const BitsVec rounded = (number & ~is_nan) | (0x7e00u & is_nan);
  const HalfVec halves = __builtin_convertvector(rounded | ((bits >> 16) & 0x8000), HalfVec);
  __builtin_memcpy(p, &halves, sizeof(halves));
}

// Only the first n lanes touch memory; the others load as zero.
TL_INLINE Vec load_first(const float* p, std::int64_t n) {
  Vec x = broadcast(0.0f);
  for (int lane = 0; lane < kLanes && lane < n; ++lane) x[lane] = p[lane];
  return x;
}
TL_INLINE void store_first(float* p, Vec x, std::int64_t n) {
  for (int lane = 0; lane < kLanes && lane < n; ++lane) p[lane] = x[lane];
}

// x in lanes first .. last-1, `other` elsewhere. It selects without arithmetic, so NaN in unselected lanes has no
// effect.
TL_INLINE Vec keep_lanes(Vec x, std::int64_t first, std::int64_t last, Vec other) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (lane < first || lane >= last) x[lane] = other[lane];
  }
  return x;
}

// Clears all bits of x that are not set in `mask`, in every lane.
TL_INLINE Vec keep_bits(Vec x, std::uint32_t mask) {
  return reinterpret_cast<Vec>(reinterpret_cast<BitsVec>(x) & mask);
}

// Fused only if the target has such an instruction; the C function that emulates it is far too slow.
TL_INLINE Vec fma(Vec a, Vec b, Vec c) {
#ifdef __FP_FAST_FMAF
  for (int lane = 0; lane < kLanes; ++lane) c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
  return c;
#else
  return a * b + c;
#endif
}

// max and min return b where a or b is NaN.
TL_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
TL_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }

// For |x| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction.
TL_INLINE Vec round(Vec x) { return (x + broadcast(12582912.0f)) - broadcast(12582912.0f); }

// 2^n for -126 <= n <= 127, built from its exponent bits.
TL_INLINE Vec power_of_two(IntVec n) { return reinterpret_cast<Vec>((n + 127) << 23); }

// x * 2^n for an integral n; in two factors, because 2^n alone may be below the smallest normal number.
TL_INLINE Vec scale_by_power_of_two(Vec x, Vec n) {
  const IntVec exponent = __builtin_convertvector(n, IntVec);
  const IntVec half = exponent >> 1;
  return x * power_of_two(half) * power_of_two(exponent - half);
}

TL_INLINE float reduce_add(Vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }
TL_INLINE float reduce_max(Vec x) {
  const float a = x[0] > x[2] ? x[0] : x[2];
  const float b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}

}  // namespace tl::TL_ISA
