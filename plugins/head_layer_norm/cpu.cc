// HeadLayerNorm on a CPU. A task is a row, whose heads are summed in a fixed order; the variance is that of the centred
// head.
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/norm_row.h"
#include "head_layer_norm_schema.h"

namespace tl::TL_ISA {
namespace {

void normalize_head(const float* x, const float* weight, std::int64_t size, float epsilon, float* y) {
  const float sum =
      sum_over_row(size, [&](std::int64_t i, Vec so_far) { return so_far + load_first(x + i, size - i); });
  const Vec mean = broadcast(sum / static_cast<float>(size));
  const float squares = sum_over_row(size, [&](std::int64_t i, Vec so_far) {
    Vec value = load_first(x + i, size - i) - mean;
    if (i + kLanes > size) value = keep_lanes(value, 0, size - i, zero());
    return fma(value, value, so_far);
  });
  const Vec factor = broadcast(1.0f / sqrtf(squares / static_cast<float>(size) + epsilon));
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const std::int64_t count = size - i;
    store_first(y + i, (load_first(x + i, count) - mean) * factor * load_first(weight + i, count), count);
  }
}

}  // namespace

void head_layer_norm(const KernelArgs& args) {
  const Tensor& rows = args.inputs[head_layer_norm::kX];
  const Tensor& weights = args.inputs[head_layer_norm::kWeight];
  const auto* weight = weights.as<const float>();
  const std::int64_t dim = weights.shape[1], normed = weights.shape[0] * dim, features = rows.shape[1];
  const auto epsilon = static_cast<float>(head_layer_norm::attributes_of(args).epsilon);
  for_each_row(args.pool, rows.shape[0], features, [&](std::int64_t row) {
    const float* x = rows.as<const float>() + row * features;
    float* y = args.outputs[head_layer_norm::kY].as<float>() + row * features;
    for (std::int64_t head = 0; head < normed; head += dim)
      normalize_head(x + head, weight + head, dim, epsilon, y + head);
    for (std::int64_t i = normed; i < features; i += kLanes) {
      store_first(y + i, load_first(x + i, features - i), features - i);
    }
  });
}

}  // namespace tl::TL_ISA
