// The part of the Scheduler that takes in the executor's results.
#include <algorithm>

#include "schedule/scheduler.h"

namespace tl {

void Scheduler::complete(const StepBatch& batch, StepResult& result, Clock::time_point now, EventBatch& events) {
  step_ended(batch.step);
  costs_.observe(batch, result);
  if (!batch.only_decodes()) pace_.observe(static_cast<int>(batch.token_ids.size()), result.compute_seconds);
  if (num_drafters_ > 0) observe_drafts(batch, result);
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const StepRow& row = batch.rows[i];
    const bool of_the_same_search = i > 0 && row.request == batch.rows[i - 1].request;
    // If the request ended while this step was in flight, its row is discarded.
    if (!of_the_same_search && table_.alive(row.request)) complete_row(row, result.rows[i], now, events);
    if (result.rows[i].is_late && executor_.says_late_with_results()) take_back(row, now, events);
  }
  if (!result.woken_slots.empty()) wake(result.woken_slots);
}

void Scheduler::complete_row(const StepRow& row, RowResult& result, Clock::time_point now, EventBatch& events) {
  const Index index = row.request.index;
  if (result.is_late) {  // its tokens were taken back; outputs of its prompt still count
    if (result.outputs) events.tokens.push_back({table_.request(index).id, {}, std::move(result.outputs), 0});
    return;
  }
  if (result.error.empty() && num_unsettled(table_.request(index), row) > 0) settle(row, result);
  if (row.num_drafts > 0 && result.error.empty()) {
    count_drafts(row, result.tokens.size() - 1);
    pace(row, result.tokens.size() - 1);
  }
  if (!result.error.empty()) {
    remove(index, FinishReason::kError, std::move(result.error), now, events);
  } else if (row.sample && table_.request(index).is_search()) {
    advance_search(index, result, now, events);
  } else if (row.sample) {
    accept_tokens(index, result, now, events);
  } else if (result.outputs) {
    events.tokens.push_back({table_.request(index).id, {}, std::move(result.outputs), 0});
  }
}

void Scheduler::accept_tokens(Index index, RowResult& result, Clock::time_point now, EventBatch& events) {
  Request& request = table_.request(index);
  --request.num_pending;
  request.late = {};
  if (!request.first_token) request.first_token = now;
  const int num_before = static_cast<int>(request.tokens.size()) - request.num_prompt;
  std::optional<FinishReason> reason;
  int num_accepted = 0;
  for (const std::int32_t token : result.tokens) {
    request.tokens.push_back(token);
    ++num_accepted;
    reason = request.finish_reason();
    if (reason) break;
  }
  result.tokens.cut(num_accepted);  // drops the tokens after the end
  events.tokens.push_back({request.id, std::move(result.tokens), std::move(result.outputs), num_before});
  // The tokens are known now, so their block may be full and shareable. Nothing is shared if the request was preempted
  // meanwhile or has ended: what the step in flight writes after an end is invalid, because the device may skip the row
  // after an end id (StepExecutor::launch), and the slot of the request's adapter may be refilled before that step is
  // over.
  const auto* running = std::get_if<Running>(&table_.state(index));
  const bool ends_in_flight = reason == FinishReason::kEndId || reason == FinishReason::kStopSequence;
  if (running != nullptr && !ends_in_flight) cache_.commit(running->kv(), chain(request), launched_);
  if (reason) remove(index, *reason, {}, now, events);
}

void Scheduler::abandon(std::span<const StepBatch* const> batches, const StepError& error, Clock::time_point now,
                        EventBatch& events) {
  const std::uint64_t first_step = batches.front()->step;
  cache_.forget_written_since(first_step);
  const auto blamed = [&](int slot) {
    return error.slots().empty() || std::ranges::find(error.slots(), slot) != error.slots().end();
  };
  for (const StepBatch* batch : batches) {
    step_ended(batch->step);
    for (const StepRow& row : batch->rows) {
      if (!table_.alive(row.request)) continue;
      Request& request = table_.request(row.request.index);
      request.num_pending = 0;
      request.outputs_from = std::min(request.outputs_from, std::max(row.past_len, row.outputs_from));
      if (blamed(row.slot) || blamed(row.request_slot)) {
        remove(row.request.index, FinishReason::kError, error.what(), now, events);
      } else if (std::holds_alternative<Running>(table_.state(row.request.index))) {
        requeue(row.request.index);
      }
    }
  }
  // If the error names no slots, every running request may have lost content, even one without a row in these steps.
  while (error.slots().empty() && !running_.empty()) {
    remove(running_.back(), FinishReason::kError, error.what(), now, events);
  }
  table_.for_each([&](Index index) {
    RequestState& state = table_.state(index);
    auto* swapped = std::get_if<Swapped>(&state);
    if (swapped && swapped->step() >= first_step) state = drop_swapped(std::move(*swapped));
  });
}

void Scheduler::reset(const std::string& message, Clock::time_point now, EventBatch& events) {
  end_all(FinishReason::kError, message, now, events);
  cache_.forget_written_since(0);
  // A step that may have been in preparation is never launched, but blocks may wait for its end.
  step_launched(launched_ + 1);
  step_ended(launched_);
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = counters_;
  stats.num_running = static_cast<int>(running_.size());
  stats.num_waiting = waiting_.size();
  stats.num_blocks = cache_.device().num_present();
  stats.num_used_blocks = stats.num_blocks - cache_.device().num_unreferenced();
  stats.num_lent_slabs = cache_.lent().num_lent();
  stats.num_spare_slabs = num_spare_slabs();
  stats.num_free_host_blocks = cache_.host().num_unreferenced();
  stats.kv = cache_.counters();
  return stats;
}

}  // namespace tl
