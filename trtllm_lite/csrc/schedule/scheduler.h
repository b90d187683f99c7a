// Decides what every step computes: any mix of prefill chunks and decode tokens.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "caches/kv_cache_manager.h"
#include "executor/step.h"
#include "schedule/cost_model.h"
#include "schedule/deadlines.h"
#include "schedule/loop/events.h"
#include "schedule/rank.h"
#include "schedule/request_table.h"
#include "schedule/scheduler_config.h"
#include "schedule/scheduler_stats.h"
#include "schedule/slot_pool.h"
#include "schedule/step_pace.h"
#include "schedule/wait_queue.h"

namespace tl {

// The scheduler of one event loop, used by one thread. It is deterministic: the same calls give the same steps. Throws
// std::invalid_argument for a config that contradicts itself or the cache.
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
class Scheduler {
 public:
  // How often a request is postponed for a running request that computes a shared prefix. For most prefixes this is
  // long enough.
  static constexpr int kMaxHolds = 16;

  Scheduler(const SchedulerConfig& config, const KvManagerConfig& cache, StepExecutor& executor);

  void add(std::unique_ptr<Request> request);
  bool empty() const { return table_.size() == 0; }

  // Ends a request in any state. Returns false if it does not exist. Its rows in flight are discarded later.
  bool end(RequestId id, FinishReason reason, std::string message, Clock::time_point now, EventBatch& events);
  // Ends the requests whose deadline has passed.
  void expire(Clock::time_point now, EventBatch& events);
  void end_all(FinishReason reason, const std::string& message, Clock::time_point now, EventBatch& events);

  // Writes the next step. Returns false if there is nothing to launch. Requests that the executor refuses end with an
  // error.
  bool prepare(StepBatch& batch, Clock::time_point now, EventBatch& events);
  // Notes that the prepared step was launched. Its batch must not change until complete() or abandon().
  void launched(const StepBatch& batch);
  // Notes which rows of the newest launched step were late. Called before the results of the step before are taken and
  // the next step is prepared. Requests whose masks have been late for too long end with an error.
  void sit_out(const StepBatch& batch, std::span<const std::size_t> late_rows, Clock::time_point now,
               EventBatch& events);
  // Takes the results of the oldest launched step, which has ended.
  void complete(const StepBatch& batch, StepResult& result, Clock::time_point now, EventBatch& events);
  // Handles the failure of the first of `batches`, which are all launched steps; the later ones fail with it. Requests
  // at fault (all running ones if `error` names none) end with its message; others in these steps wait again, keeping
  // their tokens.
  void abandon(std::span<const StepBatch* const> batches, const StepError& error, Clock::time_point now,
               EventBatch& events);

  // Recovers from an error within any of these methods, with no step in flight: ends all requests and drops all cached
  // content.
  void reset(const std::string& message, Clock::time_point now, EventBatch& events);

  // Asks for `num_slabs` more slabs of the cache's memory for another use; take_lent() returns those that have been
  // given since the last call. Running requests keep what they need; no request is admitted before there is room for
  // the slab. Throws std::logic_error if more would be lent than SlabLayout allows.
  void lend(int num_slabs);
  std::vector<int> take_lent() { return std::exchange(lent_, {}); }
  void give_back(int slab);
  // Whether requests have had to wait or were preempted while memory was lent: true once, until memory comes back or
  // more is lent.
  bool take_short_of_blocks() { return std::exchange(short_of_blocks_, false); }

  SchedulerStats stats() const;
  const KvCacheManager& cache() const { return cache_; }
  // Throws std::logic_error if queue, running list, states and cache contradict each other.
  void check_integrity();

 private:
  using Index = RequestTable::Index;
  enum class Verdict : std::uint8_t { kAdmitted, kHeld, kRefused, kNoRoom };
  struct Victim {
    std::size_t position;  // index into running_
    bool swap;
  };

  // How many requests have rows in a step: decoding ones, and others.
  struct Shares {
    int num_decoding = std::numeric_limits<int>::max();
    int num_prefilling = std::numeric_limits<int>::max();
  };

  // Defined in late_rows.cc:
  void take_back(const StepRow& row, Clock::time_point now, EventBatch& events);
  void wake(std::span<const int> slots);
  bool wake_late();

  // Defined in scheduler.cc:
  void step_launched(std::uint64_t step);
  void step_ended(std::uint64_t step);
  int remaining(const Running& running) const;
  int budget(const StepBatch& batch) const;
  int num_free(bool beside_promises) const;
  // Returns whether other running requests have prefill left.
  bool add_decode_rows(const Shares& shares, StepBatch& batch);
  bool add_row(Index index, int num_tokens, const TokenRun& drafts, StepBatch& batch);
  bool keeps_states() const;
  int keep_state(const Running& running, int num_tokens, StepBatch& batch);
  StepRow& push_row(Index index, int slot, const KvSequence& kv, int num_tokens, int num_drafts, StepBatch& batch);
  void add_table_updates(int slot, const KvSequence& kv, StepBatch& batch);
  static int num_unsettled(const Request& request, const StepRow& row);
  bool awaits(const Request& request, std::uint64_t step) const;
  bool reserve(Running& running, const KvSequence& kv, int num_tokens, StepBatch& batch);
  void leave_behind(Running& running, const KvSequence& kv, std::uint64_t last_step);
  void leave(Index index);
  void remove(Index index, FinishReason reason, std::string message, Clock::time_point now, EventBatch& events);
  TokenChain chain(Request& request) const {
    return {request.tokens, request.hashes, request.spec.cache_salt, request.spec.rows.get()};
  }

  // Defined in prefill.cc:
  int prefill_budget(const StepBatch& batch) const;
  void add_prefill_rows(Shares& shares, StepBatch& batch);
  void pass_short_prompts(Shares& shares, StepBatch& batch, Clock::time_point now, EventBatch& events);
  std::int64_t num_prefilling_tokens() const;
  int num_uncomputed(Index index) const;

  // Defined in shares.cc:
  Shares shares(std::uint64_t step) const;
  bool is_under_way(const Request& request, std::uint64_t step) const;

  // Defined in admission.cc:
  void admit(int num_most, StepBatch& batch, Clock::time_point now, EventBatch& events);
  Verdict try_admit(Index index, StepBatch& batch, Clock::time_point now, EventBatch& events);
  bool fits(const Request& request, int num_computed, const PrefixHit& hit) const;
  bool needs_promise(const Request& request) const;
  Grant grant(const Request& request, Slot slot, KvSequence kv);
  bool claim_slot(Index index, const Slot& slot, Clock::time_point now, EventBatch& events);
  bool head_needs_a_step_of_its_own() const;

  // Defined in lending.cc:
  void lend_slabs();
  int num_spare_blocks() const;
  int num_spare_slabs() const;
  void miss_blocks();

  // Defined in preemption.cc:
  bool make_room(StepBatch& batch);  // false: a request had to be preempted
  int num_missing_blocks(const Running& running) const;
  int num_blocks_about_to_return() const;
  std::optional<Victim> choose_victim() const;
  void preempt_one(Victim victim, StepBatch& batch);
  void requeue(Index index);

  // Defined in completion.cc:
  void complete_row(const StepRow& row, RowResult& result, Clock::time_point now, EventBatch& events);
  void accept_tokens(Index index, RowResult& result, Clock::time_point now, EventBatch& events);

  // Defined in drafts.cc:
  void wake_drafters(std::uint64_t step);
  void add_draft_rows(const Shares& shares, StepBatch& batch);
  bool ask_for_drafts(Index index, int most, StepBatch& batch);
  int most_drafts(const Running& running, int num_left) const;
  int paced(const Request& request, int most) const;
  void look_at_drafts(const StepBatch& batch);
  void note_nothing(const DraftTask& task);
  void settle(const StepRow& row, const RowResult& result);
  void count_drafts(const StepRow& row, int num_kept);
  void ask_for_what_pays();
  void ask_within_budget();
  void pace(const StepRow& row, int num_kept);
  void observe_drafts(const StepBatch& batch, const StepResult& result);

  // Defined in beam_steps.cc:
  void add_beam_rows(Index index, StepBatch& batch);
  void advance_search(Index index, RowResult& result, Clock::time_point now, EventBatch& events);

  // Defined in scheduler_integrity.cc:
  void check_promises() const;
  int num_claimed_by(const Running& running) const;

  SchedulerConfig config_;
  StepExecutor& executor_;
  KvCacheManager cache_;
  SlotPool slots_;
  PromiseBook promises_;
  RequestTable table_;  // declared after the pools that its states use
  Ranks ranks_;
  WaitQueue waiting_;
  std::vector<Index> running_;  // ordered by rank
  int num_rows_ = 0;            // the most rows that running_ can have in one step
  Deadlines deadlines_;
  CostModel costs_;
  StepPace pace_;
  DraftCost draft_cost_;
  std::optional<double> draft_price_;  // for each draft of the step in completion
  std::vector<Index> drafting_;        // requests that draft in the step in preparation
  std::vector<DraftTask> drafts_;      // tasks of drafting_
  int num_drafters_ = 0;               // living requests that may draft
  int num_wanted_slabs_ = 0;
  std::vector<int> lent_;
  bool short_of_blocks_ = false, has_asked_ = false;
  const int num_stages_;
  std::uint64_t launched_ = 0, ended_ = 0;
  bool last_step_decoded_ = false;
  SchedulerStats counters_;
};

}  // namespace tl
