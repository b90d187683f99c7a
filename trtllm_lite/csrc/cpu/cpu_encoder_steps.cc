#include "cpu/cpu_encoder_steps.h"

#include <algorithm>
#include <chrono>

#include "executor/embedding.h"

namespace tl {

CpuEncoderSteps::CpuEncoderSteps(LogitsExecutor& executor)
    : executor_(executor), tokens_per_block_(executor.engine().manifest().kv_cache.tokens_per_block) {}

void CpuEncoderSteps::wait(StepResult& result) {
  const StepBatch& batch = *launched_.front();
  launched_.pop_front();
  const auto begin = std::chrono::steady_clock::now();
  result.rows.resize(batch.rows.size());
  executor_.step(pack(batch), [&](std::span<const float> values, ThreadPool&) {
    const std::size_t size = values.size() / batch.rows.size();
    for (RowResult& row : result.rows) {
      set_embedding(row, values.first(size));
      values = values.subspan(size);
    }
  });
  result.compute_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

StepRequest CpuEncoderSteps::pack(const StepBatch& batch) {
  seq_lens_.clear();
  for (const StepRow& row : batch.rows) seq_lens_.push_back(row.num_tokens);
  past_lens_.assign(batch.rows.size(), 0);
  const std::int64_t longest = *std::ranges::max_element(seq_lens_);
  return {.token_ids = batch.token_ids,
          .seq_lens = seq_lens_,
          .past_lens = past_lens_,
          .block_tables = {},
          .blocks_per_row = (longest + tokens_per_block_ - 1) / tokens_per_block_,
          .logits_indices = {},
          .adapters = {},
          .token_rows = {},
          .received = {}};
}

}  // namespace tl
