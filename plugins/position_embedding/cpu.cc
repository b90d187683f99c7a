// PositionEmbedding on a CPU: adds x and table rows, converted to float.
#include "cpu/table_row.h"
#include "host/thread_pool.h"
#include "position_embedding_schema.h"

namespace tl::TL_ISA {

void position_embedding(const KernelArgs& args) {
  const Tensor& table = args.inputs[position_embedding::kWeight];
  const Tensor& tokens = args.inputs[position_embedding::kX];
  const auto* position_ids = args.inputs[position_embedding::kPositionIds].as<const std::int32_t>();
  const std::int64_t hidden = table.shape[1];
  args.pool->parallel_for(tokens.shape[0], [&](std::int64_t t, int) {
    const float* x = tokens.as<const float>() + t * hidden;
    float* y = args.outputs[position_embedding::kY].as<float>() + t * hidden;
    read_row(table, position_ids[t], y);
    for (std::int64_t i = 0; i < hidden; i += kLanes) {
      store_first(y + i, load_first(x + i, hidden - i) + load_first(y + i, hidden - i), hidden - i);
    }
  });
}

}  // namespace tl::TL_ISA
