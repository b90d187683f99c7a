// LayerNorm on a CPU. A task is a row, summed in a fixed order; the variance is computed from the centred row.
#include <math.h>

#include "cpu/norm_row.h"
#include "layer_norm_schema.h"

namespace tl::TL_ISA {
namespace {

void normalize(const NormRow& row, const float* weight, const float* bias, float epsilon) {
  const auto size = static_cast<float>(row.size);
  const float sum = sum_over_row(row.size, [&](std::int64_t i, Vec so_far) {
    const Vec x = row.add(i);
    store_first(row.total + i, x, row.size - i);
    return so_far + x;
  });
  const Vec mean = broadcast(sum / size);
  const float squares = sum_over_row(row.size, [&](std::int64_t i, Vec so_far) {
    Vec x = load_first(row.total + i, row.size - i) - mean;
    if (i + kLanes > row.size) x = keep_lanes(x, 0, row.size - i, zero());
    return fma(x, x, so_far);
  });
  const Vec factor = broadcast(1.0f / sqrtf(squares / size + epsilon));
  for (std::int64_t i = 0; i < row.size; i += kLanes) {
    const std::int64_t count = row.size - i;
    const Vec scaled = (load_first(row.total + i, count) - mean) * factor * load_first(weight + i, count);
    store_first(row.y + i, bias ? scaled + load_first(bias + i, count) : scaled, count);
  }
}

}  // namespace

void layer_norm(const KernelArgs& args) {
  const auto in = [&](int index) -> const Tensor& { return args.inputs[index]; };
  const auto* weight = in(layer_norm::kWeight).as<const float>();
  const auto* bias = in(layer_norm::kBias).as<const float>();
  const auto epsilon = static_cast<float>(layer_norm::attributes_of(args).epsilon);
  for_each_norm_row(args.pool, in(layer_norm::kX), in(layer_norm::kResidual), args.outputs[layer_norm::kY],
                    args.outputs[layer_norm::kSum], [=](const NormRow& row) { normalize(row, weight, bias, epsilon); });
}

}  // namespace tl::TL_ISA
