#include "adapters/convert_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace tl {
namespace {

constexpr std::int64_t kBlockRows = 64;  // rows to transpose at a time: for ranks up to 128 they fit the L1 cache

// Each type has the bits of its elements, a mask of the exponent bits (all set for infinity and NaN), and the
// conversions from and to float32. The conversions have no branches, so that loops over them can be vectorized.
struct Float32 {
  using Bits = std::uint32_t;
  static constexpr Bits kExponent = 0x7f800000;
  static float to_float(Bits bits) { return std::bit_cast<float>(bits); }
  static Bits from_float(float value) { return std::bit_cast<Bits>(value); }
};

struct BFloat16 {
  using Bits = std::uint16_t;
  static constexpr Bits kExponent = 0x7f80;
  static float to_float(Bits bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
  static Bits from_float(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return static_cast<Bits>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

struct Float16 {
  using Bits = std::uint16_t;
  static constexpr Bits kExponent = 0x7c00;
  static constexpr std::uint32_t kBiasChange = std::uint32_t{127 - 15} << 23;

  static float to_float(Bits bits) {
    const std::uint32_t sign = (std::uint32_t{bits} & 0x8000) << 16;
    const std::uint32_t magnitude = (std::uint32_t{bits} & 0x7fff) << 13;
    const float normal = std::bit_cast<float>(magnitude + kBiasChange);
    // A float16 below 2^-14 is its fraction times 2^-24. This computes it as a number with the exponent
    // of 2^-14 and the same fraction, minus 2^-14.
    const float small = std::bit_cast<float>(magnitude + kBiasChange + (1u << 23)) - 0x1p-14f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>((bits & kExponent) == 0 ? small : normal));
  }

  static Bits from_float(float value) {
    constexpr float kLargest = 65520.0f, kLeastNormal = 0x1p-14f;
    const std::uint32_t sign = std::bit_cast<std::uint32_t>(value) >> 16 & 0x8000;
    const float magnitude = std::abs(value);
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(magnitude) - kBiasChange;
    const std::uint32_t normal = (bits + 0xfff + (bits >> 13 & 1)) >> 13;
    // For a magnitude below 2^-14, the lowest bits of this sum are the magnitude in units of 2^-24.
    const std::uint32_t small = std::bit_cast<std::uint32_t>(magnitude + 0.5f) & 0xffff;
    const std::uint32_t finite = magnitude < kLeastNormal ? small : normal;
    return static_cast<Bits>(sign | (magnitude >= kLargest ? kExponent : finite));
  }
};

template <typename Type>
typename Type::Bits bits_at(const std::byte* from, std::int64_t index) {
  typename Type::Bits bits;
  std::memcpy(&bits, from + index * static_cast<std::int64_t>(sizeof(bits)), sizeof(bits));
  return bits;
}

template <typename From, typename To>
bool convert(const std::byte* from, std::int64_t count, float scale, typename To::Bits* to) {
  typename From::Bits largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const typename From::Bits bits = bits_at<From>(from, i), exponent = bits & From::kExponent;
    largest = std::max(largest, exponent);
    to[i] = To::from_float(From::to_float(bits) * scale);
  }
  return largest < From::kExponent;
}

template <typename From>
bool transpose(const StoredMatrix& from, std::int64_t first, std::int64_t count, float scale, float* to) {
  typename From::Bits largest = 0;
  for (std::int64_t begin = first; begin < first + count; begin += kBlockRows) {
    const std::int64_t end = std::min(begin + kBlockRows, first + count);
    for (std::int64_t column = 0; column < from.columns; ++column) {
      for (std::int64_t row = begin; row < end; ++row) {
        const typename From::Bits bits = bits_at<From>(from.data, row * from.columns + column),
                                  exponent = bits & From::kExponent;
        largest = std::max(largest, exponent);
        to[column * from.rows + row] = From::to_float(bits) * scale;
      }
    }
  }
  return largest < From::kExponent;
}

// Calls `use` with the type that `dtype` names.
template <typename Use>
bool with_type(DType dtype, const Use& use) {
  if (dtype == DType::kFloat32) return use(Float32());
  return dtype == DType::kFloat16 ? use(Float16()) : use(BFloat16());
}

}  // namespace

bool convert_rows(const StoredMatrix& from, std::int64_t first, std::int64_t count, float scale, DType dtype,
                  std::byte* to) {
  const std::int64_t skipped = first * from.columns;
  return with_type(from.dtype, [&]<typename From>(From) {
    return with_type(dtype, [&]<typename To>(To) {
      return convert<From, To>(from.data + skipped * item_size(from.dtype), count * from.columns, scale,
                               reinterpret_cast<typename To::Bits*>(to) + skipped);
    });
  });
}

bool transpose_rows(const StoredMatrix& from, std::int64_t first, std::int64_t count, float scale, float* to) {
  return with_type(from.dtype, [&]<typename From>(From) { return transpose<From>(from, first, count, scale, to); });
}

}  // namespace tl
