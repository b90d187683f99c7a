// CutRows on a CPU. A task is a row, whose sums are added in a fixed order; the variance is that of the centred row.
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/norm_row.h"
#include "cut_rows_schema.h"

namespace tl::TL_ISA {

void cut_rows(const KernelArgs& args) {
  const Tensor& rows = args.inputs[cut_rows::kX];
  const auto times = static_cast<float>(cut_rows::attributes_of(args).factor);
  const std::int64_t features = rows.shape[1];
  for_each_row(args.pool, rows.shape[0], features, [&](std::int64_t row) {
    const float* x = rows.as<const float>() + row * features;
    float* y = args.outputs[cut_rows::kY].as<float>() + row * features;
    const float sum =
        sum_over_row(features, [&](std::int64_t i, Vec so_far) { return so_far + load_first(x + i, features - i); });
    const float mean = sum / static_cast<float>(features);
    const float squares = sum_over_row(features, [&](std::int64_t i, Vec so_far) {
      Vec value = load_first(x + i, features - i) - broadcast(mean);
      if (i + kLanes > features) value = keep_lanes(value, 0, features - i, zero());
      return fma(value, value, so_far);
    });
    const Vec cut = broadcast(mean + times * sqrtf(squares / static_cast<float>(features)));
    for (std::int64_t i = 0; i < features; i += kLanes) {
      store_first(y + i, max(zero(), load_first(x + i, features - i) - cut), features - i);
    }
  });
}

}  // namespace tl::TL_ISA
