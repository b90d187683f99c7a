// What an event loop asks of the scheduler that plans its steps.
#pragma once

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "executor/step.h"
#include "schedule/loop/events.h"
#include "schedule/scheduler_stats.h"

namespace tl {

// A planner belongs to one thread. It is deterministic: the same calls give the same steps. What a kind of model has no
// use for has an empty default.
class Planner {
 public:
  Planner() = default;
  virtual ~Planner() = default;
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  virtual void add(std::unique_ptr<Request> request) = 0;
  // Whether no request is left. Otherwise, with no step in flight, prepare() finds something to launch.
  virtual bool empty() const = 0;

  // Ends a request in any state. Returns false if it does not exist. Its rows in flight are discarded later.
  virtual bool end(RequestId id, FinishReason reason, std::string message, Clock::time_point now,
                   EventBatch& events) = 0;
  // Ends the requests whose deadline has passed.
  virtual void expire(Clock::time_point now, EventBatch& events) = 0;
  virtual void end_all(FinishReason reason, const std::string& message, Clock::time_point now, EventBatch& events) = 0;

  // Writes the next step. Returns false if there is nothing to launch. Requests that the executor refuses end with an
  // error.
  virtual bool prepare(StepBatch& batch, Clock::time_point now, EventBatch& events) = 0;
  // Notes that the prepared step was launched. Its batch must not change until complete() or abandon().
  virtual void launched(const StepBatch& batch) = 0;
  // Notes which rows of the newest launched step were late (StepExecutor::late_rows). Called before the results of the
  // step before are taken and the next step is prepared.
  virtual void sit_out(const StepBatch&, std::span<const std::size_t> /*late_rows*/, Clock::time_point, EventBatch&) {}
  // Takes the results of the oldest launched step, which has ended.
  virtual void complete(const StepBatch& batch, StepResult& result, Clock::time_point now, EventBatch& events) = 0;
  // Handles the failure of the first of `batches`, which are all launched steps; the later ones fail with it.
  virtual void abandon(std::span<const StepBatch* const> batches, const StepError& error, Clock::time_point now,
                       EventBatch& events) = 0;

  // Recovers from an error within any of these methods, with no step in flight: ends all requests.
  virtual void reset(const std::string& message, Clock::time_point now, EventBatch& events) = 0;

  // Asks for `num_slabs` more slabs of the cache's memory for another use; take_lent() returns those that have been
  // given since the last call. Throws std::logic_error for more slabs than there are.
  virtual void lend(int /*num_slabs*/) { throw std::logic_error("memory was asked of a model without a cache"); }
  virtual std::vector<int> take_lent() { return {}; }
  virtual void give_back(int /*slab*/) {}
  // Whether requests have had to wait or were preempted while memory was lent: true once, until memory comes back or
  // more is lent.
  virtual bool take_short_of_blocks() { return false; }

  virtual SchedulerStats stats() const = 0;
  // Throws std::logic_error if parts of the state contradict each other.
  virtual void check_integrity() const = 0;
};

}  // namespace tl
