// The part of the Scheduler that divides a step's time among prompts.
#include <algorithm>

#include "schedule/scheduler.h"

namespace tl {

// The number of prompt tokens for which the step still has room and time.
int Scheduler::prefill_budget(const StepBatch& batch) const {
  const int num_prefill = static_cast<int>(batch.token_ids.size()) - batch.num_decode_tokens;
  return std::clamp(pace_.max_prefill(batch.num_decode_tokens) - num_prefill, 0, budget(batch));
}

void Scheduler::add_prefill_rows(Shares& shares, StepBatch& batch) {
  for (const Index index : running_) {
    const int most = prefill_budget(batch);
    if (most == 0 || shares.num_prefilling == 0) return;
    const Running& running = table_.running(index);
    const int num_tokens = remaining(running);
    if (num_tokens <= 1 || running.request().prefill_step == batch.step) continue;
    if (add_row(index, std::min(num_tokens, most), {}, batch)) --shares.num_prefilling;
  }
}

// Prompts so short that a step has time for two or more of them go before longer ones and get half of the step's time.
// Admission lets them pass longer waiting prompts; a request at the head of the queue is passed at most `ageing_window`
// times.
void Scheduler::pass_short_prompts(Shares& shares, StepBatch& batch, Clock::time_point now, EventBatch& events) {
  if (!pace_.is_limited()) return;
  const int kept = prefill_budget(batch) - prefill_budget(batch) / 2;  // the part of the budget for other prompts
  const auto num_left = [&] { return prefill_budget(batch) - kept; };
  for (const Index index : running_) {
    const int num_tokens = remaining(table_.running(index));
    if (num_tokens <= 1 || num_tokens > num_left()) continue;
    if (shares.num_prefilling > 0 && add_row(index, num_tokens, {}, batch)) --shares.num_prefilling;
  }
  if (num_prefilling_tokens() < prefill_budget(batch)) return;  // there is time for the waiting prompts
  auto& entries = waiting_.entries();
  for (auto entry = entries.begin(); entry != entries.end() && shares.num_prefilling > 0;) {
    const auto [rank, index] = *entry++;  // admission erases the entry
    if (num_uncomputed(index) > num_left()) continue;
    Request& head = table_.request(entries.begin()->second);
    const bool passes = head.rank < rank;
    if (passes && head.num_passed == config_.ageing_window) return;
    const Verdict verdict = try_admit(index, batch, now, events);
    if (verdict == Verdict::kNoRoom) return;
    if (verdict != Verdict::kAdmitted) continue;
    if (passes) ++head.num_passed;
    --shares.num_prefilling;
  }
}

// Counts the tokens that prompts of running requests still have to compute.
std::int64_t Scheduler::num_prefilling_tokens() const {
  std::int64_t num_tokens = 0;
  for (const Index index : running_) {
    const int left = remaining(std::get<Running>(table_.state(index)));
    if (left > 1) num_tokens += left;
  }
  return num_tokens;
}

// The number of tokens that a waiting request must compute after admission if the cache has none.
int Scheduler::num_uncomputed(Index index) const {
  const RequestState& state = table_.state(index);
  const auto* swapped = std::get_if<Swapped>(&state);
  return request_of(state).num_total() - (swapped == nullptr ? 0 : cache_.length(swapped->kv()));
}

}  // namespace tl
