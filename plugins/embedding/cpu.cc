// Embedding on a CPU: rows of the table, widened to float and scaled.
#include "cpu/table_row.h"
#include "cpu/thread_pool.h"
#include "embedding_schema.h"

namespace tl::TL_ISA {

void embedding(const KernelArgs& args) {
  const Tensor& table = args.inputs[embedding::kWeight];
  const auto* token_ids = args.inputs[embedding::kTokenIds].as<const std::int32_t>();
  const std::int64_t num_tokens = args.inputs[embedding::kTokenIds].shape[0], hidden = table.shape[1];
  float* y = args.outputs[embedding::kY].as<float>();
  const auto scale = static_cast<float>(embedding::attributes_of(args).scale);
  args.pool->parallel_for(num_tokens, [&](std::int64_t t, int) {
    read_row(table, token_ids[t], y + t * hidden);
    for (std::int64_t k = 0; k < hidden; ++k) y[t * hidden + k] *= scale;
  });
}

}  // namespace tl::TL_ISA
