// Embedding on a CPU: rows of the table, widened to float.
#include "cpu/table_row.h"
#include "cpu/thread_pool.h"
#include "embedding_schema.h"

namespace tl::TL_ISA {

void embedding(const KernelArgs& args) {
  const Tensor& table = args.inputs[embedding::kWeight];
  const auto* token_ids = args.inputs[embedding::kTokenIds].as<const std::int32_t>();
  const std::int64_t num_tokens = args.inputs[embedding::kTokenIds].shape[0], hidden = table.shape[1];
  float* y = args.outputs[embedding::kY].as<float>();
  args.pool->parallel_for(num_tokens, [&](std::int64_t t, int) { read_row(table, token_ids[t], y + t * hidden); });
}

}  // namespace tl::TL_ISA
