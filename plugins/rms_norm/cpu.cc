// RmsNorm on a CPU. A task is a row, summed in a fixed order.
#include <math.h>

#include "cpu/norm_row.h"
#include "rms_norm_schema.h"

namespace tl::TL_ISA {
namespace {

void normalize(const NormRow& row, const float* weight, float epsilon) {
  const float squares = sum_over_row(row.size, [&](std::int64_t i, Vec sum) {
    const Vec x = row.add(i);
    store_first(row.total + i, x, row.size - i);
    return fma(x, x, sum);
  });
  const Vec factor = broadcast(1.0f / sqrtf(squares / static_cast<float>(row.size) + epsilon));
  for (std::int64_t i = 0; i < row.size; i += kLanes) {
    const Vec x = load_first(row.total + i, row.size - i);
    store_first(row.y + i, x * factor * load_first(weight + i, row.size - i), row.size - i);
  }
}

}  // namespace

void rms_norm(const KernelArgs& args) {
  const auto in = [&](int index) -> const Tensor& { return args.inputs[index]; };
  const auto* weight = in(rms_norm::kWeight).as<const float>();
  const auto epsilon = static_cast<float>(rms_norm::attributes_of(args).epsilon);
  for_each_norm_row(args.pool, in(rms_norm::kX), in(rms_norm::kResidual), args.outputs[rms_norm::kY],
                    args.outputs[rms_norm::kSum], [=](const NormRow& row) { normalize(row, weight, epsilon); });
}

}  // namespace tl::TL_ISA
