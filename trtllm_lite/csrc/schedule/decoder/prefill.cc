#include "schedule/decoder/prefill.h"

#include <algorithm>

namespace tl {

int Prefill::budget(const StepWriter& step) const {
  const StepBatch& batch = step.batch();
  const int num_prefill = static_cast<int>(batch.token_ids.size()) - batch.num_decode_tokens;
  return std::clamp(pace_.max_prefill(batch.num_decode_tokens) - num_prefill, 0, step.budget());
}

std::optional<int> Prefill::add_short_prompts(StepShares& shares, StepWriter& step) const {
  if (!pace_.is_limited()) return std::nullopt;
  const int kept = budget(step) - budget(step) / 2;
  for (const auto index : state_.requests.running()) {
    const int num_tokens = state_.blocks.remaining(state_.requests.table().running(index));
    if (num_tokens <= 1 || num_tokens > budget(step) - kept) continue;
    if (shares.num_prefilling > 0 && step.add_row(index, num_tokens)) --shares.num_prefilling;
  }
  if (num_prefilling_tokens() < budget(step)) return std::nullopt;
  return kept;
}

void Prefill::add_chunks(StepShares& shares, StepWriter& step) const {
  for (const auto index : state_.requests.running()) {
    const int most = budget(step);
    if (most == 0 || shares.num_prefilling == 0) return;
    const Running& running = state_.requests.table().running(index);
    const int num_tokens = state_.blocks.remaining(running);
    if (num_tokens <= 1 || running.request().prefill_step == step.number()) continue;
    if (step.add_row(index, std::min(num_tokens, most))) --shares.num_prefilling;
  }
}

void Prefill::observe(const StepBatch& batch, const StepResult& result) {
  if (!batch.only_decodes()) pace_.observe(static_cast<int>(batch.token_ids.size()), result.compute_seconds);
}

// Counts the tokens that prompts of running requests still have to compute.
std::int64_t Prefill::num_prefilling_tokens() const {
  std::int64_t num_tokens = 0;
  for (const auto index : state_.requests.running()) {
    const int left = state_.blocks.remaining(state_.requests.table().running(index));
    if (left > 1) num_tokens += left;
  }
  return num_tokens;
}

}  // namespace tl
