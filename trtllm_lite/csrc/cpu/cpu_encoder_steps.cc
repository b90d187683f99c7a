#include "cpu/cpu_encoder_steps.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "executor/embedding.h"

namespace tl {

CpuEncoderSteps::CpuEncoderSteps(CpuExecutor& executor, CpuExecutor* beside, const StepBounds& bounds)
    : executor_(executor),
      beside_(beside),
      bounds_(bounds),
      tokens_per_block_(executor.engine().manifest().kv_cache.tokens_per_block) {}

void CpuEncoderSteps::wait(StepResult& result) {
  constexpr double kForEver = std::numeric_limits<double>::infinity();
  const StepBatch& batch = *launched_.front();
  launched_.pop_front();
  CpuExecutor& executor = batch.turn == StepTurn::kBeside ? *beside_ : executor_;
  const auto begin = std::chrono::steady_clock::now();
  if (batch.turn != StepTurn::kGoOn) executor.begin_parts(pack(batch));
  result.paused = !executor.run_part(batch.pause_after > 0 ? batch.pause_after : kForEver);
  result.compute_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.rows.resize(batch.rows.size());
  if (result.paused) return;
  std::span<const float> values = executor.rows();
  const std::size_t size = values.size() / batch.rows.size();
  for (RowResult& row : result.rows) {
    set_embedding(row, values.first(size));
    values = values.subspan(size);
  }
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
