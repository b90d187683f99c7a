// The planner of a decoder: decides what every step computes, any mix of prefill chunks and decode tokens.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "caches/kv_cache_manager.h"
#include "executor/step.h"
#include "schedule/cost_model.h"
#include "schedule/decoder/admission.h"
#include "schedule/decoder/draft_rows.h"
#include "schedule/decoder/late_rows.h"
#include "schedule/decoder/lending.h"
#include "schedule/decoder/preemption.h"
#include "schedule/decoder/prefill.h"
#include "schedule/decoder/schedule_state.h"
#include "schedule/decoder/step_writer.h"
#include "schedule/loop/events.h"
#include "schedule/planner.h"
#include "schedule/rank.h"
#include "schedule/scheduler_config.h"
#include "schedule/scheduler_stats.h"

namespace tl {

// The planner of a decoder. Throws std::invalid_argument for a config that contradicts itself or the cache.
//
// The rows of a step, each kind in order of rank: one token for each request that decodes and for each beam of a beam
// search; then one token with draft tokens for each request that drafts; then prefill chunks in what remains of
// max_num_tokens, first for running requests. Every running request reserves at least one token of the budget
// (max_batch_size <= max_num_tokens), so prefill never delays decode and the first prefill always advances. If steps
// have a time limit, prefill chunks are as long as it allows, and half of the time goes to short prompts first, so that
// they do not wait for earlier long ones. A beam search, or a request that drafts, has at most one step in flight,
// because its next tokens depend on that step's results. Other requests that decode have no row in the last num_stages
// - 1 launched steps; prefill chunks of one prompt may be in consecutive steps.
//
// A request whose masks were late gets no more rows until a result says that its masks are ready, because late rows
// cost the others time; if there is nothing else to do, it does get one. (If late rows are known before results, it
// gets a row at once.)
class Scheduler final : public Planner {
 public:
  Scheduler(const SchedulerConfig& config, const KvManagerConfig& cache, StepExecutor& executor);

  void add(std::unique_ptr<Request> request) override;
  bool empty() const override { return state_.requests.table().size() == 0; }

  bool end(RequestId id, FinishReason reason, std::string message, Clock::time_point now, EventBatch& events) override;
  void expire(Clock::time_point now, EventBatch& events) override;
  void end_all(FinishReason reason, const std::string& message, Clock::time_point now, EventBatch& events) override;

  bool prepare(StepBatch& batch, Clock::time_point now, EventBatch& events) override;
  void launched(const StepBatch& batch) override;
  // Requests whose masks have been late for too long end with an error.
  void sit_out(const StepBatch& batch, std::span<const std::size_t> late_rows, Clock::time_point now,
               EventBatch& events) override;
  void complete(const StepBatch& batch, StepResult& result, Clock::time_point now, EventBatch& events) override;
  // Requests at fault (all running ones if `error` names none) end with its message; others in these steps wait again,
  // keeping their tokens.
  void abandon(std::span<const StepBatch* const> batches, const StepError& error, Clock::time_point now,
               EventBatch& events) override;

  // All cached content is dropped, too.
  void reset(const std::string& message, Clock::time_point now, EventBatch& events) override;

  // Running requests keep what they need; no request is admitted before there is room for the slab. Throws
  // std::logic_error if more would be lent than SlabLayout allows.
  void lend(int num_slabs) override { lending_.lend(num_slabs); }
  std::vector<int> take_lent() override { return lending_.take_lent(); }
  void give_back(int slab) override { lending_.give_back(slab); }
  bool take_short_of_blocks() override { return lending_.take_short_of_blocks(); }

  SchedulerStats stats() const override;
  const KvCacheManager& cache() const { return state_.blocks.cache(); }
  // Compares queue, running list, states and cache.
  void check_integrity() const override;

 private:
  bool add_generating_rows(const StepShares& shares, StepWriter& step);

  ScheduleState state_;
  Ranks ranks_;
  CostModel costs_;
  TokenCounters tokens_;
  Lending lending_;
  Preemption preemption_;
  Prefill prefill_;
  Admission admission_;
  DraftRows drafts_;
  LateRows late_;
};

}  // namespace tl
