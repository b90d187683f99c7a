// simd.h for AVX-512 (F, BW, DQ, VL): 16 lanes, 32 registers.
#pragma once

// GCC 12 warns about the deliberately undefined operands inside the intrinsics (GCC bug 105593).
#pragma GCC diagnostic push
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

namespace tl::TL_ISA {

using Vec = __m512;
constexpr int kLanes = 16;
// The most accumulators of a register-blocked loop; the other registers are for operands.
constexpr int kMaxAccumulators = 24;

TL_INLINE Vec broadcast(float x) { return _mm512_set1_ps(x); }

TL_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
TL_INLINE Vec load(const BFloat16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
TL_INLINE Vec load(const Float16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
TL_INLINE Vec load(const std::int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
TL_INLINE Vec load_lowered(const Float8E4m3* p) {
  const __m256i bits = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(bits, 7), _mm256_set1_epi16(static_cast<short>(0xbf80)));
  return _mm512_cvtph_ps(half);
}

// A word of each lane's row. nibble<i>() is element i of each word: its 4 bits, shifted to the bottom, index a table
// of 16 floats.
template <typename Word>
struct Words {
  __m512i bits;
};
TL_INLINE Words<Int4Word> load(const Int4Word* p) { return {_mm512_loadu_si512(p)}; }
TL_INLINE Words<UInt4Word> load(const UInt4Word* p) { return {_mm512_loadu_si512(p)}; }
TL_INLINE Words<Float4Word> load(const Float4Word* p) { return {_mm512_loadu_si512(p)}; }
template <int kIndex>
TL_INLINE Vec nibble(Words<Int4Word> words) {
  const Vec values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
  return _mm512_permutexvar_ps(_mm512_srli_epi32(words.bits, 4 * kIndex), values);
}
template <int kIndex>
TL_INLINE Vec nibble(Words<UInt4Word> words) {
  const Vec values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_permutexvar_ps(_mm512_srli_epi32(words.bits, 4 * kIndex), values);
}
template <int kIndex>
TL_INLINE Vec nibble(Words<Float4Word> words) {
  const Vec values = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
  return _mm512_permutexvar_ps(_mm512_srli_epi32(words.bits, 4 * kIndex), values);
}
TL_INLINE void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
TL_INLINE void store_rounded(BFloat16* p, Vec x) {
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i bits = _mm512_mask_mov_epi32(_mm512_castps_si512(x), is_nan, _mm512_set1_epi32(0x7fc00000));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m256i rounded = _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), rounded);
}
TL_INLINE void store_rounded(Float16* p, Vec x) {
  const __m256i rounded = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), rounded);
}

// A mask of bits first .. last-1; bounds are clamped to the lanes.
TL_INLINE __mmask16 lane_mask(std::int64_t first, std::int64_t last) {
  const auto below = [](std::int64_t n) { return n <= 0 ? 0u : n >= kLanes ? 0xffffu : (1u << n) - 1u; };
  return static_cast<__mmask16>(below(last) & ~below(first));
}

// Only the first n lanes touch memory; the others load as zero.
TL_INLINE Vec load_first(const float* p, std::int64_t n) { return _mm512_maskz_loadu_ps(lane_mask(0, n), p); }
TL_INLINE void store_first(float* p, Vec x, std::int64_t n) { _mm512_mask_storeu_ps(p, lane_mask(0, n), x); }

// x in lanes first .. last-1, `other` elsewhere. It selects without arithmetic, so NaN in unselected lanes has no
// effect.
TL_INLINE Vec keep_lanes(Vec x, std::int64_t first, std::int64_t last, Vec other) {
  return _mm512_mask_mov_ps(other, lane_mask(first, last), x);
}

// Clears all bits of x that are not set in `mask`, in every lane.
TL_INLINE Vec keep_bits(Vec x, std::uint32_t mask) {
  return _mm512_and_ps(x, _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(mask))));
}

TL_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }

// max and min return b where a or b is NaN.
TL_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
TL_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }

TL_INLINE Vec round(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// x * 2^n for an integral n.
TL_INLINE Vec scale_by_power_of_two(Vec x, Vec n) { return _mm512_scalef_ps(x, n); }

TL_INLINE float reduce_add(Vec x) { return _mm512_reduce_add_ps(x); }
TL_INLINE float reduce_max(Vec x) { return _mm512_reduce_max_ps(x); }

}  // namespace tl::TL_ISA
