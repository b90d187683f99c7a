// PagedStore on a CPU.
#include <string.h>

#include "cpu/kernel.h"
#include "cpu/paged_rows.h"
#include "cpu/row_tasks.h"
#include "paged_store_schema.h"

namespace tl::TL_ISA {

void paged_store(const KernelArgs& args) {
  const Tensor& x = args.inputs[paged_store::kX];
  const auto* indices = args.inputs[paged_store::kIndices].as<const std::int32_t>();
  const auto* positions = args.inputs[paged_store::kPositionIds].as<const std::int32_t>();
  const PagedRows rows(args.outputs[paged_store::kCacheOut], args.inputs[paged_store::kCuSeqlens],
                       args.inputs[paged_store::kBlockTables]);
  const std::int64_t features = x.shape[1], num_tokens = args.inputs[paged_store::kPositionIds].shape[0];
  for_each_row(args.pool, indices ? x.shape[0] : min(x.shape[0], num_tokens), features, [&](std::int64_t row) {
    const std::int64_t token = indices ? indices[row] : row;
    memcpy(rows.at(token, positions[token]), x.as<const float>() + row * features,
           static_cast<size_t>(features) * sizeof(float));
  });
}

}  // namespace tl::TL_ISA
