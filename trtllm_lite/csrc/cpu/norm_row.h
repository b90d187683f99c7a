// The loop that RmsNorm and LayerNorm share: adds the residual to each row, then normalizes it.
#pragma once

#include <cstdint>

#include "cpu/kernel.h"
#include "cpu/row_tasks.h"
#include "cpu/simd/simd.h"

namespace tl::TL_ISA {

struct NormRow {
  const float* x;
  const float* residual;  // null: zero
  float* total;           // receives x + residual; may be y itself if the sum is not wanted
  float* y;
  std::int64_t size;

  Vec add(std::int64_t i) const {
    const Vec value = load_first(x + i, size - i);
    return residual ? value + load_first(residual + i, size - i) : value;
  }
};

// Calls add_terms(i, sum) for each vector of a row, with four sums in turn, and adds up the sums. The order of
// additions depends only on `size`.
template <typename Terms>
TL_INLINE float sum_over_row(std::int64_t size, const Terms& add_terms) {
  constexpr int kChains = 4;
  Vec sums[kChains] = {zero(), zero(), zero(), zero()};
  for (std::int64_t i = 0, chain = 0; i < size; i += kLanes, chain = (chain + 1) % kChains) {
    sums[chain] = add_terms(i, sums[chain]);
  }
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Calls normalize(NormRow) for every row; `residual` and `sum` may be absent.
template <typename Normalize>
void for_each_norm_row(ThreadPool* pool, const Tensor& x, const Tensor& residual, const Tensor& y, const Tensor& sum,
                       const Normalize& normalize) {
  const std::int64_t size = x.shape[1];
  const auto *from = x.as<const float>(), *added = residual.as<const float>();
  float *to = y.as<float>(), *total = sum.data ? sum.as<float>() : to;
  for_each_row(pool, x.shape[0], size, [&](std::int64_t row) {
    const std::int64_t at = row * size;
    normalize(NormRow{from + at, added ? added + at : nullptr, total + at, to + at, size});
  });
}

}  // namespace tl::TL_ISA
