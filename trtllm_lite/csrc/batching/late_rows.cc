// The part of the Scheduler that deals with rows that sit their step out.
#include <algorithm>
#include <string>

#include "batching/scheduler.h"

namespace tl {
namespace {

// Doubling them finds masks that take long with few rows, at most as long again after they are there.
int steps_of_rest(int num_late) {
  int rest = 1;
  while (--num_late > 0 && rest < Scheduler::kMostRest) rest *= 2;
  return rest - 1;
}

std::string takes_too_long() {
  return "guided_decoding: expected a grammar that says within " + std::to_string(Scheduler::kMostLate.count()) +
         " seconds which tokens may come next, found one that takes longer: simplify it, and above all its rules that "
         "derive the same text in several ways";
}

}  // namespace

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
  late.rests_until = launched_ + 1 + static_cast<std::uint64_t>(steps_of_rest(late.num_steps));
  if (now - late.since >= kMostLate) {
    remove(row.request.index, FinishReason::kError, takes_too_long(), now, events);
  }
}

// Lets requests that rest have rows again; false if none rests.
bool Scheduler::wake_late() {
  bool rests = false;
  for (const Index index : running_) {
    Lateness& late = table_.request(index).late;
    rests = rests || late.rests_until > launched_ + 1;
    late.rests_until = 0;
  }
  return rests;
}

}  // namespace tl
