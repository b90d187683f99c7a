// Blocks of the paged cache: float32 in memory, or 16-bit elements that are narrowed when a token is appended and
// widened, a block at a time, when it is read.
#pragma once

#include <cstdint>

#include "cpu/simd.h"
#include "problem.h"

namespace tl::TL_ISA {

TL_INLINE float narrow(float x, const float*) { return x; }

// To the nearest, halves to even; a NaN stays one.
TL_INLINE BFloat16 narrow(float x, const BFloat16*) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  if ((bits & 0x7fffffff) > 0x7f800000) return {static_cast<std::uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// To the nearest, halves to even; beyond 65,520 infinity; a NaN stays one.
TL_INLINE Float16 narrow(float x, const Float16*) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  const std::uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return {static_cast<std::uint16_t>(sign | 0x7e00)};
  if (bits >= 0x477ff000) return {static_cast<std::uint16_t>(sign | 0x7c00)};
  if (bits < 0x38800000) {  // below 2^-14: adding 2^-1 leaves multiples of 2^-24, those of the smallest numbers
    float magnitude;
    __builtin_memcpy(&magnitude, &bits, sizeof(bits));
    magnitude += 0.5f;
    __builtin_memcpy(&bits, &magnitude, sizeof(bits));
    return {static_cast<std::uint16_t>(sign | (bits - 0x3f000000))};
  }
  return {static_cast<std::uint16_t>(sign | (bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13)};
}

// element(i) becomes element i * stride of the cache, `first` elements behind its start, for i < count.
template <typename T>
TL_INLINE void write_elements(void* cache, std::int64_t first, std::int64_t stride, const float* elements,
                              std::int64_t count) {
  T* to = static_cast<T*>(cache) + first;
  for (std::int64_t i = 0; i < count; ++i) to[i * stride] = narrow(elements[i], to);
}

TL_INLINE void write_cache(const AttentionProblem& p, void* cache, std::int64_t first, std::int64_t stride,
                           const float* elements, std::int64_t count) {
  switch (p.cache_dtype) {
    case DType::kBFloat16:
      return write_elements<BFloat16>(cache, first, stride, elements, count);
    case DType::kFloat16:
      return write_elements<Float16>(cache, first, stride, elements, count);
    default:
      return write_elements<float>(cache, first, stride, elements, count);
  }
}

template <typename T>
TL_INLINE const float* widen_block(const T* block, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; i += kLanes) store(to + i, load(block + i));
  return to;
}

// The `count` floats of the block that starts `first` elements behind the cache's start: where they lie, or in `to`. A
// block has a multiple of 16 elements.
TL_INLINE const float* read_cache(const AttentionProblem& p, const void* cache, std::int64_t first, std::int64_t count,
                                  float* to) {
  switch (p.cache_dtype) {
    case DType::kBFloat16:
      return widen_block(static_cast<const BFloat16*>(cache) + first, count, to);
    case DType::kFloat16:
      return widen_block(static_cast<const Float16*>(cache) + first, count, to);
    default:
      return static_cast<const float*>(cache) + first;
  }
}

}  // namespace tl::TL_ISA
