#include "schedule/scheduler.h"

#include <optional>
#include <utility>

#include "schedule/decoder/completion.h"
#include "schedule/decoder/decode_rows.h"
#include "schedule/decoder/integrity.h"
#include "schedule/event_sink.h"

namespace tl {

Scheduler::Scheduler(const SchedulerConfig& config, const KvManagerConfig& cache, StepExecutor& executor)
    : state_(config, cache, executor),
      ranks_(config.ageing_window),
      lending_(state_.blocks, state_.requests.running()),
      preemption_(state_, costs_, lending_),
      prefill_(state_),
      admission_(state_, prefill_, lending_),
      drafts_(state_, costs_),
      late_(state_) {}

void Scheduler::add(std::unique_ptr<Request> request) { state_.requests.add(std::move(request), ranks_); }

bool Scheduler::end(RequestId id, FinishReason reason, std::string message, Clock::time_point now, EventBatch& events) {
  const auto index = state_.requests.table().find(id);
  if (index) state_.requests.end(*index, reason, std::move(message), {now, events});
  return index.has_value();
}

void Scheduler::expire(Clock::time_point now, EventBatch& events) {
  while (const auto index = state_.requests.deadlines().passed(now)) {
    state_.requests.end(*index, FinishReason::kTimedOut, {}, {now, events});
  }
}

void Scheduler::end_all(FinishReason reason, const std::string& message, Clock::time_point now, EventBatch& events) {
  state_.requests.table().for_each([&](auto index) { state_.requests.end(index, reason, message, {now, events}); });
}

bool Scheduler::prepare(StepBatch& batch, Clock::time_point now, EventBatch& events) {
  const EventSink sink{now, events};
  StepWriter step(state_, batch, tokens_);
  lending_.go_on();
  const bool room = preemption_.make_room(batch);
  const bool prefill_only = admission_.head_needs_a_step_of_its_own();
  drafts_.wake(step.number());
  StepShares shares = shares_of(state_, step.number());
  const bool has_prefill = prefill_only || add_generating_rows(shares, step);
  if (room) {
    const std::optional<int> kept = prefill_.add_short_prompts(shares, step);
    if (kept) admission_.admit_short_prompts(*kept, shares, step, sink);
  }
  if (has_prefill) prefill_.add_chunks(shares, step);
  // A request that was just preempted still has a token in flight. No request may pass it, so admission pauses.
  if (room) admission_.admit(shares, step, sink);
  if (prefill_only && step.num_rows() == 0) add_generating_rows(shares, step);
  if (step.num_rows() == 0 && !state_.steps.any_in_flight() && late_.wake_all()) add_generating_rows(shares, step);
  // A step that prompts fill up to its time limit is awaited, so that a request that arrives meanwhile is in the next
  // one.
  batch.awaited = batch.awaited || prefill_.fills(step);
  admission_.prepared(batch);
  return !batch.empty();
}

// Adds the tokens of requests that generate. Returns whether running requests have prefill left.
bool Scheduler::add_generating_rows(const StepShares& shares, StepWriter& step) {
  const bool has_prefill = add_decode_rows(state_, shares, step);
  drafts_.add(shares, step);
  return has_prefill;
}

void Scheduler::launched(const StepBatch& batch) {
  state_.step_launched(batch.step);
  if (state_.config.drafter) state_.config.drafter->launched(batch);
}

void Scheduler::sit_out(const StepBatch& batch, std::span<const std::size_t> late_rows, Clock::time_point now,
                        EventBatch& events) {
  for (const std::size_t i : late_rows) late_.take_back(batch.rows[i], {now, events});
}

void Scheduler::complete(const StepBatch& batch, StepResult& result, Clock::time_point now, EventBatch& events) {
  state_.step_ended(batch.step);
  costs_.observe(batch, result);
  prefill_.observe(batch, result);
  drafts_.observe(batch, result);
  Completion(state_, drafts_, late_, {now, events}).take(batch, result);
  if (!result.woken_slots.empty()) late_.wake(result.woken_slots);
}

void Scheduler::abandon(std::span<const StepBatch* const> batches, const StepError& error, Clock::time_point now,
                        EventBatch& events) {
  Completion(state_, drafts_, late_, {now, events}).abandon(batches, error);
}

void Scheduler::reset(const std::string& message, Clock::time_point now, EventBatch& events) {
  end_all(FinishReason::kError, message, now, events);
  state_.blocks.cache().forget_written_since(0);
  // A step that may have been in preparation is never launched, but blocks may wait for its end.
  state_.step_launched(state_.steps.launched + 1);
  state_.step_ended(state_.steps.launched);
}

SchedulerStats Scheduler::stats() const {
  const KvCacheManager& cache = state_.blocks.cache();
  SchedulerStats stats;
  stats.num_running = state_.requests.running().size();
  stats.num_waiting = state_.requests.waiting().size();
  stats.num_blocks = cache.device().num_present();
  stats.num_used_blocks = stats.num_blocks - cache.device().num_unreferenced();
  stats.num_lent_slabs = cache.lent().num_lent();
  stats.num_spare_slabs = lending_.num_spare_slabs();
  stats.num_free_host_blocks = cache.host().num_unreferenced();
  stats.kv = cache.counters();
  stats.num_recompute_preemptions = preemption_.num_recomputed();
  stats.num_swap_preemptions = preemption_.num_swapped();
  stats.num_recomputed_tokens = tokens_.num_recomputed;
  stats.num_scheduled_tokens = tokens_.num_scheduled;
  stats.num_late_rows = late_.count();
  stats.drafts = drafts_.counters();
  return stats;
}

void Scheduler::check_integrity() const { tl::check_integrity(state_); }

}  // namespace tl
