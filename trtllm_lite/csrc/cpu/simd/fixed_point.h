// Fixed-point activations for products with 4-bit weights: integers with a scale for each block of a row. Sums over a
// block are exact integers too, in whatever order and by whatever unit they are computed.
#pragma once

#include <cstdint>

#include "cpu/products/panel_gemm.h"
#include "cpu/simd/bf16_pairs.h"

namespace tl::TL_ISA {

// The integers of longer blocks would have too few bits (largest_fixed).
constexpr std::int64_t kMaxFixedBlock = 128;
// The least scale; its inverse and products with it are normal numbers.
constexpr float kLeastFixedScale = 0x1p-100f;

// The largest magnitude of an integer in a block: its upper half fits a byte, and the sum of a block's products with
// elements up to 15 stays below 2^24, because tiles sum in float32.
TL_INLINE float largest_fixed(std::int64_t block) {
  constexpr std::int64_t kMost = 127 * 256 + 127;
  return static_cast<float>(min(kMost, (1 << 24) / (15 * block) - 128));
}

// 32 integers of a row: 16 in each of two vectors.
struct Fixed {
  __m512i first;
  __m512i second;
};

// integer = 256 * upper + lower, both in -128 … 127.
TL_INLINE __m512i lower_of(__m512i number) { return _mm512_srai_epi32(_mm512_slli_epi32(number, 24), 24); }

// The upper halves (times 256) or the lower halves as pairs of bfloat16, exactly.
template <typename Word>
TL_INLINE Pairs upper_pairs(const Fixed& numbers) {
  const auto upper = [](__m512i number) { return _mm512_cvtepi32_ps(_mm512_sub_epi32(number, lower_of(number))); };
  return round_to_pairs<Word>(upper(numbers.first), upper(numbers.second));
}
template <typename Word>
TL_INLINE Pairs lower_pairs(const Fixed& numbers) {
  const auto lower = [](__m512i number) { return _mm512_cvtepi32_ps(lower_of(number)); };
  return round_to_pairs<Word>(lower(numbers.first), lower(numbers.second));
}

// The bytes in the order in which words of 4-bit elements are multiplied. For each 8 integers, 16 bytes: the upper
// halves of integers 0 2 4 6, then 1 3 5 7, then the lower halves in the same order.
TL_INLINE __m512i bytes_of(const Fixed& numbers) {
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(numbers.first)),
                                          _mm512_cvtepi32_epi16(numbers.second), 1);
  const __m512i upper =
      _mm512_broadcast_i32x4(_mm_setr_epi8(1, 5, 9, 13, 3, 7, 11, 15, -1, -1, -1, -1, -1, -1, -1, -1));
  const __m512i lower =
      _mm512_broadcast_i32x4(_mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, 2, 6, 10, 14));
  const __m512i rounded_up = _mm512_add_epi16(both, _mm512_set1_epi16(128));
  return _mm512_or_si512(_mm512_shuffle_epi8(rounded_up, upper), _mm512_shuffle_epi8(both, lower));
}

// The scale of a block: the least power of two with which its integers are in range, so that elements that are
// multiples of it are exact. NaN if an element is not finite. Elements are multiplied by `inverse`.
struct FixedScale {
  float scale;
  float inverse;
};

// `largest` is largest_fixed() of the block.
TL_INLINE FixedScale fixed_scale(const float* x, std::int64_t block, float largest) {
  constexpr std::int32_t kInfinity = 0x7f800000, kFraction = 0x7fffff, kTwiceTheBias = 254 << 23;
  __m512i magnitudes = _mm512_setzero_si512();  // bits of the magnitudes, which order like the floats
  for (std::int64_t k = 0; k < block; k += kLanes) {
    const Vec magnitude = keep_bits(load_first(x + k, block - k), 0x7fffffff);
    magnitudes = _mm512_max_epi32(magnitudes, _mm512_castps_si512(magnitude));
  }
  const std::int32_t most = _mm512_reduce_max_epi32(magnitudes);
  if (most >= kInfinity) return {__builtin_nanf(""), 0.0f};
  const float least = __builtin_bit_cast(float, most) / largest;
  const auto bits = __builtin_bit_cast(std::int32_t, least > kLeastFixedScale ? least : kLeastFixedScale);
  const std::int32_t rounded = (bits + kFraction) & ~kFraction;
  return {__builtin_bit_cast(float, rounded), __builtin_bit_cast(float, kTwiceTheBias - rounded)};
}

TL_INLINE Fixed to_fixed(const float* x, std::int64_t count, float inverse) {
  const Vec factor = broadcast(inverse);
  return {_mm512_cvtps_epi32(load_first(x, count) * factor),
          _mm512_cvtps_epi32(load_first(x + kLanes, count - kLanes) * factor)};
}

// The number that is added to elements so that they become unsigned bytes.
template <typename Word>
constexpr int kExcess = 0;
template <>
inline constexpr int kExcess<Int4Word> = 8;

// Elements 0 2 4 6, or 1 3 5 7, of each word, plus kExcess.
template <bool kOdd, typename Word>
TL_INLINE __m512i bytes_of(Words<Word> words) {
  __m512i bits = words.bits;
  if constexpr (kExcess<Word> != 0) bits = _mm512_xor_si512(bits, _mm512_set1_epi32(static_cast<int>(0x88888888)));
  if constexpr (kOdd) bits = _mm512_srli_epi32(bits, 4);
  return _mm512_and_si512(bits, _mm512_set1_epi32(0x0f0f0f0f));
}

// Sums of products over a block for some rows and columns, separately for upper and lower halves.
template <typename Word, int kCount, int kVecs>
struct FixedSums {
  __m512i upper[kCount][kVecs] = {};
  __m512i lower[kCount][kVecs] = {};

  // Adds the products of 8 elements of k. The bytes of rows of x are x_stride words apart.
  TL_INLINE void add(const std::int32_t* x, std::int64_t x_stride, const Words<Word> (&words)[kVecs]) {
    for (int v = 0; v < kVecs; ++v) {
      const __m512i even = bytes_of<false>(words[v]), odd = bytes_of<true>(words[v]);
      for (int r = 0; r < kCount; ++r) {
        const std::int32_t* of_row = x + r * x_stride;
        upper[r][v] = _mm512_dpbusd_epi32(upper[r][v], even, _mm512_set1_epi32(of_row[0]));
        upper[r][v] = _mm512_dpbusd_epi32(upper[r][v], odd, _mm512_set1_epi32(of_row[1]));
        lower[r][v] = _mm512_dpbusd_epi32(lower[r][v], even, _mm512_set1_epi32(of_row[2]));
        lower[r][v] = _mm512_dpbusd_epi32(lower[r][v], odd, _mm512_set1_epi32(of_row[3]));
      }
    }
  }

  // The sum for one row and vector; `x_sum` is the sum of the row's integers.
  TL_INLINE Vec total(int r, int v, float x_sum) const {
    const __m512i excess = _mm512_set1_epi32(kExcess<Word> * static_cast<std::int32_t>(x_sum));
    const __m512i products = _mm512_add_epi32(_mm512_slli_epi32(upper[r][v], 8), lower[r][v]);
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(products, excess));
  }
};

}  // namespace tl::TL_ISA
