// Reads a row of a weight table as float32.
#pragma once

#include <cstdint>

#include "cpu/kernel.h"
#include "cpu/simd/simd.h"

namespace tl::TL_ISA {

TL_INLINE float to_float(float x) { return x; }
template <typename Narrow>
TL_INLINE float to_float(Narrow x) {
  const Narrow lanes[kLanes] = {x};
  float converted[kLanes];
  store(converted, load(lanes));
  return converted[0];
}

// Element k of a word; the sign is the highest of its 4 bits.
TL_INLINE float element_of(UInt4Word word, std::int64_t k) { return static_cast<float>(word.bits >> (4 * k) & 15); }
TL_INLINE float element_of(Int4Word word, std::int64_t k) {
  return static_cast<float>(static_cast<int>((word.bits >> (4 * k) & 15) ^ 8) - 8);
}
template <typename Item>
TL_INLINE float element_of(Item item, std::int64_t) {
  return to_float(item);
}

// Reads elements `first` to first + count - 1 of a row; item i of the row is at start[i * stride].
template <typename Item>
void read_elements(const Tensor& table, std::int64_t row, std::int64_t first, std::int64_t count, float* to) {
  constexpr int kPanelWidth = 64;
  const std::int64_t items = table.shape[1] / kElements<Item>;
  const bool panels = table.layout == Layout::kPanel64;
  const std::int64_t stride = panels ? kPanelWidth : 1;
  const Item* start = table.as<const Item>();
  start += panels ? row / kPanelWidth * items * kPanelWidth + row % kPanelWidth : row * items;
  for (std::int64_t k = first; k < first + count; ++k) {
    *to++ = element_of(start[k / kElements<Item> * stride], k % kElements<Item>);
  }
}

// Reads a part of row `row` of `table` [rows, columns], in any layout of a table, without applying scales.
inline void read_elements(const Tensor& table, std::int64_t row, std::int64_t first, std::int64_t count, float* to) {
  switch (table.dtype) {
    case DType::kBFloat16:
      return read_elements<BFloat16>(table, row, first, count, to);
    case DType::kFloat16:
      return read_elements<Float16>(table, row, first, count, to);
    case DType::kInt8:
      return read_elements<std::int8_t>(table, row, first, count, to);
    case DType::kFloat8E4m3fn:
      return read_elements<Float8E4m3>(table, row, first, count, to);
    case DType::kInt4:
      return read_elements<Int4Word>(table, row, first, count, to);
    case DType::kUint4:
      return read_elements<UInt4Word>(table, row, first, count, to);
    default:
      return read_elements<float>(table, row, first, count, to);
  }
}

// Reads a whole row.
inline void read_row(const Tensor& table, std::int64_t row, float* to) {
  read_elements(table, row, 0, table.shape[1], to);
}

}  // namespace tl::TL_ISA
