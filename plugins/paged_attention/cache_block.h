// Blocks of the paged cache: float32 in memory, or 16- or 8-bit elements, which are converted from float32 when a token
// is appended and back, a block at a time, when it is read. 8-bit elements have a scale.
#pragma once

#include <cstdint>

#include "cpu/simd/simd.h"
#include "problem.h"

namespace tl::TL_ISA {

TL_INLINE float narrow(float x, const float*) { return x; }

// Rounds to nearest, ties to even; NaN stays NaN.
TL_INLINE BFloat16 narrow(float x, const BFloat16*) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  if ((bits & 0x7fffffff) > 0x7f800000) return {static_cast<std::uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// Rounds to nearest, ties to even; infinity beyond 65,520; NaN stays NaN.
TL_INLINE Float16 narrow(float x, const Float16*) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  const std::uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return {static_cast<std::uint16_t>(sign | 0x7e00)};
  if (bits >= 0x477ff000) return {static_cast<std::uint16_t>(sign | 0x7c00)};
  if (bits < 0x38800000) {  // below 2^-14: adding 2^-1 rounds to multiples of 2^-24, the subnormal numbers
    float magnitude;
    __builtin_memcpy(&magnitude, &bits, sizeof(bits));
    magnitude += 0.5f;
    __builtin_memcpy(&bits, &magnitude, sizeof(bits));
    return {static_cast<std::uint16_t>(sign | (bits - 0x3f000000))};
  }
  return {static_cast<std::uint16_t>(sign | (bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13)};
}

// Rounds to nearest, ties to even, and clamps to 448; NaN stays NaN, which load() reads as 480.
TL_INLINE Float8E4m3 narrow(float x, const Float8E4m3*) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  const std::uint32_t sign = bits >> 24 & 0x80;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return {static_cast<std::uint8_t>(sign | 0x7f)};
  if (bits >= 0x43e00000) return {static_cast<std::uint8_t>(sign | 0x7e)};
  if (bits < 0x3c800000) {  // below 2^-6: adding 2^14 rounds to multiples of 2^-9, the subnormal numbers
    float magnitude;
    __builtin_memcpy(&magnitude, &bits, sizeof(bits));
    magnitude += 0x1p14f;
    __builtin_memcpy(&bits, &magnitude, sizeof(bits));
    return {static_cast<std::uint8_t>(sign | (bits - 0x46800000))};
  }
  return {static_cast<std::uint8_t>(sign | (bits - 0x3c000000 + 0x7ffff + (bits >> 20 & 1)) >> 20)};
}

// Rounds to nearest, ties to even, within -128 .. 127; NaN becomes -128.
TL_INLINE std::int8_t narrow(float x, const std::int8_t*) {
  const float within = x < 127.0f ? (x > -128.0f ? x : -128.0f) : 127.0f;
  return static_cast<std::int8_t>((within + 0x1.8p23f) - 0x1.8p23f);
}

// Whether elements have a scale.
template <typename T>
constexpr bool kHasScale = sizeof(T) == 1;

// Writes element(i) to element `first` + i * stride of the cache, for i < count.
template <typename T>
TL_INLINE void write_elements(const CacheTensor& cache, std::int64_t first, std::int64_t stride, const float* elements,
                              std::int64_t count) {
  T* to = static_cast<T*>(cache.data) + first;
  for (std::int64_t i = 0; i < count; ++i) {
    to[i * stride] = narrow(kHasScale<T> ? elements[i] / cache.scale : elements[i], to);
  }
}

TL_INLINE void write_cache(const CacheTensor& cache, std::int64_t first, std::int64_t stride, const float* elements,
                           std::int64_t count) {
  switch (cache.dtype) {
    case DType::kBFloat16:
      return write_elements<BFloat16>(cache, first, stride, elements, count);
    case DType::kFloat16:
      return write_elements<Float16>(cache, first, stride, elements, count);
    case DType::kFloat8E4m3fn:
      return write_elements<Float8E4m3>(cache, first, stride, elements, count);
    case DType::kInt8:
      return write_elements<std::int8_t>(cache, first, stride, elements, count);
    default:
      return write_elements<float>(cache, first, stride, elements, count);
  }
}

template <typename T>
TL_INLINE const float* convert_block(const CacheTensor& cache, std::int64_t first, std::int64_t count, float* to) {
  const T* block = static_cast<const T*>(cache.data) + first;
  const Vec scale = broadcast(cache.scale);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const Vec elements = load(block + i);
    store(to + i, kHasScale<T> ? elements * scale : elements);
  }
  return to;
}

// Reads the block of `count` floats that starts at element `first` of the cache: returns its address in the cache, or
// converts it into `to`. A block has a multiple of 16 elements.
TL_INLINE const float* read_cache(const CacheTensor& cache, std::int64_t first, std::int64_t count, float* to) {
  switch (cache.dtype) {
    case DType::kBFloat16:
      return convert_block<BFloat16>(cache, first, count, to);
    case DType::kFloat16:
      return convert_block<Float16>(cache, first, count, to);
    case DType::kFloat8E4m3fn:
      return convert_block<Float8E4m3>(cache, first, count, to);
    case DType::kInt8:
      return convert_block<std::int8_t>(cache, first, count, to);
    default:
      return static_cast<const float*>(cache.data) + first;
  }
}

}  // namespace tl::TL_ISA
