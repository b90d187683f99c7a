// simd.h for AVX2 with FMA and F16C: 8 lanes, 16 registers.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tl::TL_ISA {

using Vec = __m256;
constexpr int kLanes = 8;
// The most accumulators of a register-blocked loop; the other registers are for operands.
constexpr int kMaxAccumulators = 12;

TL_INLINE Vec broadcast(float x) { return _mm256_set1_ps(x); }

TL_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
TL_INLINE Vec load(const BFloat16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
TL_INLINE Vec load(const Float16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
TL_INLINE Vec load(const std::int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
TL_INLINE Vec load_lowered(const Float8E4m3* p) {
  const __m128i bits = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i half = _mm_and_si128(_mm_slli_epi16(bits, 7), _mm_set1_epi16(static_cast<short>(0xbf80)));
  return _mm256_cvtph_ps(half);
}

// A word of each lane's row; nibble<i>() is element i of each word.
template <typename Word>
struct Words {
  __m256i bits;
};
TL_INLINE Words<Int4Word> load(const Int4Word* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
TL_INLINE Words<UInt4Word> load(const UInt4Word* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
TL_INLINE Words<Float4Word> load(const Float4Word* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
template <int kIndex>
TL_INLINE Vec nibble(Words<Int4Word> words) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words.bits, 28 - 4 * kIndex), 28));
}
template <int kIndex>
TL_INLINE Vec nibble(Words<UInt4Word> words) {
  return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(words.bits, 4 * kIndex), _mm256_set1_epi32(15)));
}
// Looks up 8 magnitudes by the low 3 bits.
template <int kIndex>
TL_INLINE Vec nibble(Words<Float4Word> words) {
  const Vec values = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  const Vec magnitude = _mm256_permutevar8x32_ps(values, _mm256_srli_epi32(words.bits, 4 * kIndex));
  const Vec shifted = _mm256_castsi256_ps(_mm256_slli_epi32(words.bits, 28 - 4 * kIndex));
  return _mm256_or_ps(magnitude, _mm256_and_ps(shifted, _mm256_set1_ps(-0.0f)));
}
TL_INLINE void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
TL_INLINE void store_rounded(BFloat16* p, Vec x) {
  const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const __m256i bits =
      _mm256_castps_si256(_mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), is_nan));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i rounded = _mm256_srli_epi32(sum, 16);
  const __m256i packed = _mm256_packus_epi32(rounded, rounded);  // of each half of the lanes, twice
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}
TL_INLINE void store_rounded(Float16* p, Vec x) {
  const __m128i rounded = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), rounded);
}

// All ones in lanes first .. last-1.
TL_INLINE __m256i lane_mask(std::int64_t first, std::int64_t last) {
  const auto clamp = [](std::int64_t n) { return static_cast<int>(n < 0 ? 0 : n > kLanes ? kLanes : n); };
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32(clamp(first)), lane);
  return _mm256_andnot_si256(before, _mm256_cmpgt_epi32(_mm256_set1_epi32(clamp(last)), lane));
}

// Only the first n lanes touch memory; the others load as zero.
TL_INLINE Vec load_first(const float* p, std::int64_t n) { return _mm256_maskload_ps(p, lane_mask(0, n)); }
TL_INLINE void store_first(float* p, Vec x, std::int64_t n) { _mm256_maskstore_ps(p, lane_mask(0, n), x); }

// x in lanes first .. last-1, `other` elsewhere. It selects without arithmetic, so NaN in unselected lanes has no
// effect.
TL_INLINE Vec keep_lanes(Vec x, std::int64_t first, std::int64_t last, Vec other) {
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(lane_mask(first, last)));
}

// Clears all bits of x that are not set in `mask`, in every lane.
TL_INLINE Vec keep_bits(Vec x, std::uint32_t mask) {
  return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(mask))));
}

TL_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }

// max and min return b where a or b is NaN.
TL_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
TL_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }

TL_INLINE Vec round(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// 2^n for -126 <= n <= 127, built from its exponent bits.
TL_INLINE Vec power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

// x * 2^n for an integral n; in two factors, because 2^n alone may be below the smallest normal number.
TL_INLINE Vec scale_by_power_of_two(Vec x, Vec n) {
  const __m256i exponent = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(exponent, 1);
  return x * power_of_two(half) * power_of_two(_mm256_sub_epi32(exponent, half));
}

TL_INLINE float reduce_add(Vec x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
TL_INLINE float reduce_max(Vec x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace tl::TL_ISA
