// RescaleRows on a CPU. A task is a row, whose sums are added in a fixed order.
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/norm_row.h"
#include "rescale_rows_schema.h"

namespace tl::TL_ISA {
namespace {

float mean_square(const float* x, std::int64_t size) {
  const float sum = sum_over_row(size, [&](std::int64_t i, Vec so_far) {
    const Vec value = load_first(x + i, size - i);
    return fma(value, value, so_far);
  });
  return sum / static_cast<float>(size);
}

}  // namespace

void rescale_rows(const KernelArgs& args) {
  const Tensor& rows = args.inputs[rescale_rows::kX];
  const auto least = static_cast<float>(rescale_rows::attributes_of(args).least);
  const std::int64_t features = rows.shape[1];
  for_each_row(args.pool, rows.shape[0], 2 * features, [&](std::int64_t row) {
    const float* x = rows.as<const float>() + row * features;
    const float* like = args.inputs[rescale_rows::kLike].as<const float>() + row * features;
    float* y = args.outputs[rescale_rows::kY].as<float>() + row * features;
    const float own = mean_square(x, features);
    const Vec factor = broadcast(sqrtf(mean_square(like, features)) / sqrtf(own < least ? least : own));
    for (std::int64_t i = 0; i < features; i += kLanes) {
      store_first(y + i, load_first(x + i, features - i) * factor, features - i);
    }
  });
}

}  // namespace tl::TL_ISA
