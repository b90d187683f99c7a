// GatherColumns on a CPU.
#include "cpu/kernel.h"
#include "cpu/row_tasks.h"
#include "gather_columns_schema.h"

namespace tl::TL_ISA {

void gather_columns(const KernelArgs& args) {
  const Tensor& x = args.inputs[gather_columns::kX];
  const auto* order = args.inputs[gather_columns::kOrder].as<const std::int32_t>();
  const Tensor& y = args.outputs[gather_columns::kY];
  const std::int64_t rows = x.shape[0], features = x.shape[1], columns = y.shape[1];
  for_each_row(args.pool, rows, columns, [&](std::int64_t row) {
    const float* from = x.as<const float>() + row * features;
    float* to = y.as<float>() + row * columns;
    for (std::int64_t i = 0; i < columns; ++i) to[i] = from[order[i]];
  });
}

}  // namespace tl::TL_ISA
