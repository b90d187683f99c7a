// GatherColumns on a CPU.
#include "cpu/kernel.h"
#include "cpu/row_tasks.h"
#include "gather_columns_schema.h"

namespace tl::TL_ISA {

void gather_columns(const KernelArgs& args) {
  const Tensor& x = args.inputs[gather_columns::kX];
  const auto* order = args.inputs[gather_columns::kOrder].as<const std::int32_t>();
  float* y = args.outputs[gather_columns::kY].as<float>();
  const std::int64_t rows = x.shape[0], features = x.shape[1];
  for_each_row(args.pool, rows, features, [&](std::int64_t row) {
    const float* from = x.as<const float>() + row * features;
    float* to = y + row * features;
    for (std::int64_t i = 0; i < features; ++i) to[i] = from[order[i]];
  });
}

}  // namespace tl::TL_ISA
