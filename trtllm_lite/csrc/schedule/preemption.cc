// The part of the Scheduler that preempts requests when blocks run out.
#include <algorithm>
#include <limits>

#include "schedule/scheduler.h"

namespace tl {

bool Scheduler::make_room(StepBatch& batch) {
  if (config_.policy == CapacityPolicy::kGuaranteedNoEvict) return true;  // all blocks are promised
  const BlockPool& pool = cache_.device();
  // Without windows, every running request needs at most one more block.
  const int num_sure = pool.num_ready() - pool.num_unreferenced() + num_free(false);
  if (!cache_.geometry().gives_back() && num_sure >= std::ssize(running_)) return true;
  int num_needed = 0;
  for (const Index index : running_) num_needed += num_missing_blocks(table_.running(index));
  if (num_needed > 0) num_needed -= num_blocks_about_to_return();
  bool room = true;
  while (num_needed > num_free(false)) {
    const std::optional<Victim> victim = choose_victim();
    if (!victim) break;
    miss_blocks();
    num_needed -= num_missing_blocks(table_.running(running_[victim->position]));
    preempt_one(*victim, batch);
    room = false;
  }
  return room;
}

// The blocks without a promise that the request needs for its next step. (In groups without a window, prefill has had
// all its blocks since admission.)
int Scheduler::num_missing_blocks(const Running& running) const {
  if (running.promise() != nullptr || running.request().all_scheduled()) return 0;
  const int num_tokens = std::clamp(remaining(running), 1, config_.max_num_tokens);
  return cache_.num_missing(running.kv(), cache_.length(running.kv()) + num_tokens);
}

// Blocks of requests whose last token is being computed. They become free without a preemption.
int Scheduler::num_blocks_about_to_return() const {
  int num_blocks = 0;
  for (const Index index : running_) {
    const auto& running = std::get<Running>(table_.state(index));
    if (running.request().all_scheduled()) num_blocks += cache_.num_exclusive_blocks(running.kv());
  }
  return num_blocks;
}

// Chooses the request that loses the least work; of several, the one of later rank. The first in rank is never chosen:
// it runs to its end, so that requests cannot preempt each other in circles. (If all others have a promise, the first
// in rank waits until one of them ends.)
std::optional<Scheduler::Victim> Scheduler::choose_victim() const {
  std::optional<Victim> victim;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t position = 1; position < running_.size(); ++position) {
    const auto& running = std::get<Running>(table_.state(running_[position]));
    if (running.promise() != nullptr) continue;
    const bool gains = cache_.num_exclusive_blocks(running.kv()) > 0;
    if (!gains || running.request().all_scheduled()) continue;
    const int num_computed = cache_.length(running.kv()) - cache_.num_shared_tokens(running.kv());
    const double recompute = costs_.recompute_seconds(std::max(num_computed, 0));
    const int num_used = cache_.num_used_blocks(running.kv());
    const bool can_swap = num_used > 0 && num_used <= cache_.host().num_ready() && cache_.has_host_runs();
    const bool swap = can_swap && costs_.swap_seconds(num_used) < recompute;
    const double cost = swap ? costs_.swap_seconds(num_used) : recompute;
    if (cost <= least) {
      least = cost;
      victim = Victim{position, swap};
    }
  }
  return victim;
}

void Scheduler::preempt_one(Victim victim, StepBatch& batch) {
  const Index index = running_[victim.position];
  Request& request = table_.request(index);
  ++request.num_preemptions;
  std::optional<Swapped> swapped;
  if (victim.swap) swapped = swap_out(table_.running(index), cache_, batch);
  if (swapped) {
    ++counters_.num_swap_preemptions;
    table_.state(index) = std::move(*swapped);
    leave(index);
    waiting_.insert(request.rank, index);
  } else {
    ++counters_.num_recompute_preemptions;
    requeue(index);
  }
}

void Scheduler::requeue(Index index) {
  RequestState& state = table_.state(index);
  state = preempt(std::move(std::get<Running>(state)));
  request_of(state).num_searched = 0;
  leave(index);
  waiting_.insert(request_of(state).rank, index);
}

}  // namespace tl
