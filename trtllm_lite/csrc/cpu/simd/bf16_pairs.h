// Weights and activations as pairs of bfloat16, for instructions that multiply two neighbours at a time.
//
// For each column, a row of pairs holds two elements along k: elements 2i and 2i+1, or, if a word holds eight 4-bit
// elements, its elements i and i+4, which are 16 bits apart as in a pair. Rows of x are paired the same way.
#pragma once

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
