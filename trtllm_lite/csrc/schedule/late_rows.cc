// The part of the Scheduler that handles rows whose masks are late.
#include <algorithm>
#include <utility>

#include "schedule/scheduler.h"
#include "schedule/step_time.h"

namespace tl {
void Scheduler::sit_out(const StepBatch& batch, std::span<const std::size_t> late_rows, Clock::time_point now,
                        EventBatch& events) {
  for (const std::size_t i : late_rows) take_back(batch.rows[i], now, events);
}

void Scheduler::take_back(const StepRow& row, Clock::time_point now, EventBatch& events) {
  ++counters_.num_late_rows;
  if (!table_.alive(row.request)) return;
  Request& request = table_.request(row.request.index);
  settle(row, {});
  --request.num_pending;
  const int known_end = row.past_len + row.num_tokens - row.num_drafts;
  if (request.max_scheduled == known_end) --request.max_scheduled;
  Lateness& late = request.late;
  if (late.num_steps++ == 0) late.since = now;
  late.rests = executor_.says_late_with_results() || late.num_steps > 1;
  if (now - late.since >= kMostLate) {
    remove(row.request.index, FinishReason::kError, takes_too_long(), now, events);
  }
}

// Lets requests in these slots have rows again if their late masks had excluded them (Lateness::rests).
void Scheduler::wake(std::span<const int> slots) {
  for (const Index index : running_) {
    const int slot = table_.running(index).slot().index();
    if (std::ranges::find(slots, slot) != slots.end()) table_.request(index).late.rests = false;
  }
}

// Lets all requests that late masks had excluded (Lateness::rests) have rows again. Returns false if there were none.
bool Scheduler::wake_late() {
  bool rests = false;
  for (const Index index : running_) rests |= std::exchange(table_.request(index).late.rests, false);
  return rests;
}

}  // namespace tl
