// Embedding on a CPU: table rows, converted to float and scaled.
#include <string.h>

#include "cpu/table_row.h"
#include "embedding_schema.h"
#include "host/thread_pool.h"

namespace tl::TL_ISA {

// y = y * scale + offset, with the scale and offset of each element's block.
void scale_blocks(const Tensor& scale, const Tensor& offset, std::int64_t row, std::int64_t columns, float* y) {
  constexpr std::int64_t kAtOnce = 64;
  const std::int64_t blocks = scale.shape[1], block = columns / blocks;
  for (std::int64_t first = 0; first < blocks; first += kAtOnce) {
    const std::int64_t count = min(kAtOnce, blocks - first);
    float scales[kAtOnce], offsets[kAtOnce] = {};
    read_elements(scale, row, first, count, scales);
    if (offset.data != nullptr) read_elements(offset, row, first, count, offsets);
    for (std::int64_t k = 0; k < count * block; ++k, ++y) *y = *y * scales[k / block] + offsets[k / block];
  }
}

void embedding(const KernelArgs& args) {
  const Tensor& table = args.inputs[embedding::kWeight];
  const Tensor& scales = args.inputs[embedding::kWeightScale];
  const Tensor& offsets = args.inputs[embedding::kWeightOffset];
  const auto* token_ids = args.inputs[embedding::kTokenIds].as<const std::int32_t>();
  const std::int64_t num_tokens = args.inputs[embedding::kTokenIds].shape[0];
  const std::int64_t vocab = table.shape[0], hidden = table.shape[1], first = args.rank * vocab;
  const Tensor& token_rows = args.inputs[embedding::kTokenRows];
  float* y = args.outputs[embedding::kY].as<float>();
  const auto scale = static_cast<float>(embedding::attributes_of(args).scale);
  args.pool->parallel_for(num_tokens, [&](std::int64_t t, int) {
    if (token_ids[t] < 0 && args.rank == 0) {
      memcpy(y + t * hidden, token_rows.as<const float>() + ~token_ids[t] * hidden,
             static_cast<size_t>(hidden) * sizeof(float));
      return;
    }
    const std::int64_t row = token_ids[t] < 0 ? -1 : token_ids[t] - first;
    if (row < 0 || row >= vocab) {
      for (std::int64_t k = 0; k < hidden; ++k) y[t * hidden + k] = 0;
      return;
    }
    read_row(table, row, y + t * hidden);
    if (scales.data != nullptr) scale_blocks(scales, offsets, row, hidden, y + t * hidden);
    for (std::int64_t k = 0; k < hidden; ++k) y[t * hidden + k] *= scale;
  });
}

}  // namespace tl::TL_ISA
