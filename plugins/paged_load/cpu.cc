// PagedLoad on a CPU.
#include <string.h>

#include "cpu/kernel.h"
#include "cpu/paged_rows.h"
#include "cpu/row_tasks.h"
#include "paged_load_schema.h"

namespace tl::TL_ISA {

void paged_load(const KernelArgs& args) {
  const Tensor& y = args.outputs[paged_load::kY];
  const auto* positions = args.inputs[paged_load::kPositionIds].as<const std::int32_t>();
  const PagedRows rows(args.inputs[paged_load::kCache], args.inputs[paged_load::kCuSeqlens],
                       args.inputs[paged_load::kBlockTables]);
  const std::int64_t features = y.shape[1];
  const size_t bytes = static_cast<size_t>(features) * sizeof(float);
  for_each_row(args.pool, y.shape[0], features, [&](std::int64_t token) {
    float* const row = y.as<float>() + token * features;
    if (positions[token] > 0) {
      memcpy(row, rows.at(token, positions[token] - 1), bytes);
    } else {
      memset(row, 0, bytes);
    }
  });
}

}  // namespace tl::TL_ISA
