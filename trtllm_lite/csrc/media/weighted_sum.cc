#include "media/weighted_sum.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "media/axis_weights.h"

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // a false alarm of GCC 12 inside its own header (GCC bug 105593)
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstring>
#define TL_VNNI [[gnu::target("avx512bw,avx512vl,avx512vnni")]]
#define TL_VNNI_INLINE [[gnu::always_inline, gnu::target("avx512bw,avx512vl,avx512vnni")]] inline
#endif

namespace tl {
namespace {

constexpr int kLanes = 64;

std::int32_t weight_at(const std::int8_t* digits, int k) {
  const std::int8_t* group = digits + k / kGroup * kGroup * kDigits + k % kGroup;
  return group[0] + group[kGroup] * 256 + group[2 * kGroup] * 65536;
}

template <typename Lanes>
[[gnu::always_inline]] inline void sum_lanes(const std::uint8_t* rows, std::ptrdiff_t stride, int count,
                                             const std::int8_t* digits, std::uint8_t* out, Lanes lanes) {
  std::int32_t sums[kLanes];
  for (int i = 0; i < lanes; ++i) sums[i] = 1 << (kWeightBits - 1);
  for (int k = 0; k < count; ++k, rows += stride) {
    const std::int32_t weight = weight_at(digits, k);
    for (int i = 0; i < lanes; ++i) sums[i] += weight * rows[i];
  }
  for (int i = 0; i < lanes; ++i) out[i] = static_cast<std::uint8_t>(std::clamp(sums[i] >> kWeightBits, 0, 255));
}

[[gnu::always_inline]] inline void sum_all(const std::uint8_t* rows, std::ptrdiff_t stride, int count,
                                           const std::int8_t* digits, std::uint8_t* out, std::ptrdiff_t size) {
  std::ptrdiff_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    sum_lanes(rows + i, stride, count, digits, out + i, std::integral_constant<int, kLanes>());
  }
  if (i < size) sum_lanes(rows + i, stride, count, digits, out + i, static_cast<int>(size - i));
}

void sum_portable(const std::uint8_t* rows, std::ptrdiff_t stride, int count, const std::int8_t* digits,
                  std::uint8_t* out, std::ptrdiff_t size) {
  sum_all(rows, stride, count, digits, out, size);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void sum_avx2(const std::uint8_t* rows, std::ptrdiff_t stride, int count,
                                      const std::int8_t* digits, std::uint8_t* out, std::ptrdiff_t size) {
  sum_all(rows, stride, count, digits, out, size);
}

// The bytes of four rows, in the order of 32-bit elements that each hold one byte of every row. The order within the
// elements of a 128-bit part is undone when sums are packed to bytes.
struct FourRows {
  __m512i parts[4];
};

// The sums of products with each digit of the weights alone.
struct DigitSums {
  __m512i low[4], middle[4], high[4];
};

// Where there are fewer than four rows, the one with the index `last` stands for others, whose weights are 0.
TL_VNNI_INLINE FourRows load_rows(const std::uint8_t* rows, std::ptrdiff_t stride, __mmask64 lanes, int last) {
  __m512i row[4];
  for (int k = 0; k < 4; ++k) row[k] = _mm512_maskz_loadu_epi8(lanes, rows + std::min(k, last) * stride);
  const __m512i low = _mm512_unpacklo_epi8(row[0], row[1]);
  const __m512i high = _mm512_unpackhi_epi8(row[0], row[1]);
  const __m512i other_low = _mm512_unpacklo_epi8(row[2], row[3]);
  const __m512i other_high = _mm512_unpackhi_epi8(row[2], row[3]);
  return {{_mm512_unpacklo_epi16(low, other_low), _mm512_unpackhi_epi16(low, other_low),
           _mm512_unpacklo_epi16(high, other_high), _mm512_unpackhi_epi16(high, other_high)}};
}

TL_VNNI_INLINE void add_digit(__m512i* sums, const FourRows& rows, const std::int8_t* digits) {
  std::int32_t word;
  std::memcpy(&word, digits, sizeof word);
  const __m512i factors = _mm512_set1_epi32(word);
  for (int i = 0; i < 4; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], rows.parts[i], factors);
}

TL_VNNI_INLINE void add_products(DigitSums& sums, const FourRows& rows, const std::int8_t* digits) {
  add_digit(sums.low, rows, digits);
  add_digit(sums.middle, rows, digits + kGroup);
  add_digit(sums.high, rows, digits + 2 * kGroup);
}

TL_VNNI_INLINE __m512i bytes_of(const DigitSums& sums) {
  __m512i totals[4];
  for (int i = 0; i < 4; ++i) {
    const __m512i higher = _mm512_add_epi32(sums.middle[i], _mm512_slli_epi32(sums.high[i], 8));
    totals[i] = _mm512_srai_epi32(_mm512_add_epi32(sums.low[i], _mm512_slli_epi32(higher, 8)), kWeightBits);
  }
  return _mm512_packus_epi16(_mm512_packs_epi32(totals[0], totals[1]), _mm512_packs_epi32(totals[2], totals[3]));
}

TL_VNNI_INLINE void sum_64(const std::uint8_t* rows, std::ptrdiff_t stride, int count, const std::int8_t* digits,
                           std::uint8_t* out, __mmask64 lanes) {
  DigitSums sums;
  for (int i = 0; i < 4; ++i) {
    sums.low[i] = _mm512_set1_epi32(1 << (kWeightBits - 1));
    sums.middle[i] = _mm512_setzero_si512();
    sums.high[i] = _mm512_setzero_si512();
  }
  for (; count >= kGroup; count -= kGroup, rows += kGroup * stride, digits += kGroup * kDigits) {
    add_products(sums, load_rows(rows, stride, lanes, kGroup - 1), digits);
  }
  if (count > 0) add_products(sums, load_rows(rows, stride, lanes, count - 1), digits);
  _mm512_mask_storeu_epi8(out, lanes, bytes_of(sums));
}

TL_VNNI void sum_vnni(const std::uint8_t* rows, std::ptrdiff_t stride, int count, const std::int8_t* digits,
                      std::uint8_t* out, std::ptrdiff_t size) {
  for (std::ptrdiff_t i = 0; i < size; i += kLanes) {
    const __mmask64 lanes = size - i >= kLanes ? ~__mmask64{0} : (__mmask64{1} << (size - i)) - 1;
    sum_64(rows + i, stride, count, digits, out + i, lanes);
  }
}
#endif

std::vector<WeightedSum> runnable_sums() {
  std::vector<WeightedSum> sums;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni")) {
    sums.push_back(sum_vnni);
  }
  if (__builtin_cpu_supports("avx2")) sums.push_back(sum_avx2);
#endif
  sums.push_back(sum_portable);
  return sums;
}

}  // namespace

WeightedSum weighted_sum(int index) {
  static const std::vector<WeightedSum> sums = runnable_sums();
  return index < static_cast<int>(sums.size()) ? sums[index] : nullptr;
}

}  // namespace tl
