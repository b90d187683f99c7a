#include "cpu/cpu_encoder_steps.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "engine/module.h"
#include "executor/embedding.h"

namespace tl {

CpuEncoderSteps::CpuEncoderSteps(CpuExecutor& executor, CpuExecutor* beside, const StepBounds& bounds)
    : executor_(executor),
      beside_(beside),
      bounds_(bounds),
      tokens_per_block_(executor.engine().manifest().kv_cache.tokens_per_block),
      tokens_per_row_(only_module(executor.engine().manifest()).tokens_per_row),
      embedding_size_(
          static_cast<std::size_t>(only_module(executor.engine().manifest()).outputs.front().shape.back().value)) {}

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
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const std::size_t count = num_embeddings(batch.rows[i].num_tokens, tokens_per_row_) * embedding_size_;
    set_embedding(result.rows[i], values.first(count), embedding_size_);
    values = values.subspan(count);
  }
}

StepRequest CpuEncoderSteps::pack(const StepBatch& batch) {
  seq_lens_.clear();
  for (const StepRow& row : batch.rows) seq_lens_.push_back(row.num_tokens);
  past_lens_.assign(batch.rows.size(), 0);
  token_rows_.clear();
  for (std::size_t i = 0; i < batch.token_rows.size(); ++i) {
    const PromptRows& own = *batch.token_rows[i];
    for (std::size_t row = 0; row < own.positions.size(); ++row) {
      token_rows_.push_back({batch.rows[i].first_token + own.positions[row], own.row(row)});
    }
  }
  const std::int64_t longest = *std::ranges::max_element(seq_lens_);
  return {.token_ids = batch.token_ids,
          .seq_lens = seq_lens_,
          .past_lens = past_lens_,
          .block_tables = {},
          .blocks_per_row = (longest + tokens_per_block_ - 1) / tokens_per_block_,
          .logits_indices = {},
          .adapters = {},
          .token_rows = token_rows_,
          .received = {}};
}

}  // namespace tl
