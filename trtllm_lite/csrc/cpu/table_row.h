// One row of a table of weights, widened to float.
#pragma once

#include <cstdint>

#include "cpu/kernel.h"
#include "cpu/simd.h"

namespace tl::TL_ISA {

TL_INLINE float widen(float x) { return x; }
template <typename Half>
TL_INLINE float widen(Half x) {
  const Half lanes[kLanes] = {x};
  float widened[kLanes];
  store(widened, load(lanes));
  return widened[0];
}

// Element k of a row lies at start[k * stride].
template <typename Weight>
void read_row(const Tensor& table, std::int64_t row, float* to) {
  constexpr int kPanelWidth = 64;
  const std::int64_t columns = table.shape[1];
  const bool panels = table.layout == Layout::kPanel64;
  const std::int64_t stride = panels ? kPanelWidth : 1;
  const Weight* start = table.as<const Weight>();
  start += panels ? row / kPanelWidth * columns * kPanelWidth + row % kPanelWidth : row * columns;
  for (std::int64_t k = 0; k < columns; ++k) to[k] = widen(start[k * stride]);
}

// Row `row` of `table` [rows, columns], in any of the layouts of a table.
inline void read_row(const Tensor& table, std::int64_t row, float* to) {
  switch (table.dtype) {
    case DType::kBFloat16:
      return read_row<BFloat16>(table, row, to);
    case DType::kFloat16:
      return read_row<Float16>(table, row, to);
    default:
      return read_row<float>(table, row, to);
  }
}

}  // namespace tl::TL_ISA
