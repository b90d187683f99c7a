// Weights and activations as pairs of bfloat16, for instructions that multiply two neighbours at a time.
//
// For each column, a row of pairs holds two elements along k: elements 2i and 2i+1, or, if a word holds eight 4-bit
// elements, its elements i and i+4, which are 16 bits apart as in a pair. Rows of x are paired the same way.
#pragma once

#include <cstdint>

#include "cpu/simd/simd.h"

namespace tl::TL_ISA {

using Pairs = __m512i;  // the pairs of 16 columns

TL_INLINE void store(BFloat16* p, Pairs pairs) { _mm512_store_si512(p, pairs); }

// Pairs two vectors that are exact in bfloat16: the lower 16 bits of each float32 are zero.
TL_INLINE Pairs pair_exact(Vec first, Vec second) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
  return _mm512_or_si512(low, _mm512_and_si512(_mm512_castps_si512(second), high));
}

// Pairs of all 64 columns of two rows of a panel.
template <typename Weight>
TL_INLINE void store_panel_pairs(const Weight* first, const Weight* second, BFloat16* to) {
  for (int c = 0; c < 64; c += kLanes) store(to + 2 * c, pair_exact(load(first + c), load(second + c)));
}

template <>
TL_INLINE void store_panel_pairs(const BFloat16* first, const BFloat16* second, BFloat16* to) {
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                       5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int c = 0; c < 64; c += 32) {
    const __m512i a = _mm512_loadu_si512(first + c), b = _mm512_loadu_si512(second + c);
    store(to + 2 * c, _mm512_permutex2var_epi16(a, low, b));
    store(to + 2 * c + 32, _mm512_permutex2var_epi16(a, high, b));
  }
}

// The bytes of each magnitude of E4M3 as bfloat16, by the number's bits without the sign.
struct E4m3Magnitudes {
  alignas(64) std::uint8_t low[128];
  alignas(64) std::uint8_t high[128];

  constexpr E4m3Magnitudes() : low{}, high{} {
    for (int bits = 1; bits < 128; ++bits) {
      int exponent = bits / 8 == 0 ? 1 : bits / 8, fraction = bits / 8 == 0 ? bits : bits % 8 + 8;
      for (; fraction < 8; fraction *= 2) --exponent;  // a subnormal number
      const int value = (exponent - 7 + 127) << 7 | fraction % 8 << 4;
      low[bits] = static_cast<std::uint8_t>(value);
      high[bits] = static_cast<std::uint8_t>(value >> 8);
    }
  }
};
inline constexpr E4m3Magnitudes kE4m3Magnitudes;

// The bytes of each number are looked up, which takes fewer instructions than a conversion by way of float32.
template <>
TL_INLINE void store_panel_pairs(const Float8E4m3* first, const Float8E4m3* second, BFloat16* to) {
  // Columns 16q + 4j to 16q + 4j + 3 go to bytes 4q to 4q + 3 of the j-th 16 bytes, where the interleaving of the bytes
  // of a row, and then of two rows, brings them to the j-th 16 bytes of vector q.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const auto table = [](const std::uint8_t* bytes) { return _mm512_load_si512(bytes); };
  const __m512i low[2] = {table(kE4m3Magnitudes.low), table(kE4m3Magnitudes.low + 64)};
  const __m512i high[2] = {table(kE4m3Magnitudes.high), table(kE4m3Magnitudes.high + 64)};
  __m512i rows[2][2];  // by row: the columns of q < 2, and the others, as bfloat16
  for (int row = 0; row < 2; ++row) {
    const __m512i bits = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(row == 0 ? first : second));
    const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi8(static_cast<char>(0x80)));
    const __m512i lower = _mm512_permutex2var_epi8(low[0], bits, low[1]);
    const __m512i upper = _mm512_or_si512(_mm512_permutex2var_epi8(high[0], bits, high[1]), sign);
    rows[row][0] = _mm512_unpacklo_epi8(lower, upper);
    rows[row][1] = _mm512_unpackhi_epi8(lower, upper);
  }
  store(to, _mm512_unpacklo_epi16(rows[0][0], rows[1][0]));
  store(to + 32, _mm512_unpackhi_epi16(rows[0][0], rows[1][0]));
  store(to + 64, _mm512_unpacklo_epi16(rows[0][1], rows[1][1]));
  store(to + 96, _mm512_unpackhi_epi16(rows[0][1], rows[1][1]));
}

// The 16 values of 4-bit elements as bfloat16, twice: pair_of() looks up with 5 bits, the highest of which belongs to
// another element.
template <typename Word>
TL_INLINE __m512i nibble_values();
template <>
TL_INLINE __m512i nibble_values<UInt4Word>() {
  const __m256i half = _mm256_setr_epi16(0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110,
                                         0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170);
  return _mm512_broadcast_i64x4(half);
}
template <>
TL_INLINE __m512i nibble_values<Int4Word>() {
  const auto negative = [](int bits) { return static_cast<short>(bits | 0x8000); };
  const __m256i half = _mm256_setr_epi16(0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, negative(0x4100),
                                         negative(0x40e0), negative(0x40c0), negative(0x40a0), negative(0x4080),
                                         negative(0x4040), negative(0x4000), negative(0x3f80));
  return _mm512_broadcast_i64x4(half);
}

template <>
TL_INLINE __m512i nibble_values<Float4Word>() {
  const __m256i magnitudes = _mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0, 0x3f00,
                                               0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0);
  const auto sign = static_cast<short>(0x8000);
  const __m256i signs = _mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, sign, sign, sign, sign, sign, sign, sign, sign);
  return _mm512_broadcast_i64x4(_mm256_or_si256(magnitudes, signs));
}

// Elements i and i + 4 of each word.
template <int kIndex, typename Word>
TL_INLINE Pairs pair_of(Words<Word> words) {
  return _mm512_permutexvar_epi16(_mm512_srli_epi32(words.bits, 4 * kIndex), nibble_values<Word>());
}

// Rounds 32 elements of a row of x to bfloat16 (to nearest, ties to even), in the order of the pairs of `Weight`.
template <typename Weight>
TL_INLINE Pairs round_to_pairs(Vec first, Vec second) {
  const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  if constexpr (kElements<Weight> == 1) {
    return rounded;
  } else {
    const __m512i order = _mm512_set_epi16(31, 27, 30, 26, 29, 25, 28, 24, 23, 19, 22, 18, 21, 17, 20, 16, 15, 11, 14,
                                           10, 13, 9, 12, 8, 7, 3, 6, 2, 5, 1, 4, 0);
    return _mm512_permutexvar_epi16(order, rounded);
  }
}

TL_INLINE Vec first_of(Pairs pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
TL_INLINE Vec second_of(Pairs pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

TL_INLINE Vec sum_of(Pairs pairs) { return first_of(pairs) + second_of(pairs); }

}  // namespace tl::TL_ISA
