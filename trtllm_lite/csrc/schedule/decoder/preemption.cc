#include "schedule/decoder/preemption.h"

#include <algorithm>
#include <limits>

namespace tl {

bool Preemption::make_room(StepBatch& batch) {
  if (state_.config.policy == CapacityPolicy::kGuaranteedNoEvict) return true;  // all blocks are promised
  const KvBlocks& blocks = state_.blocks;
  const RunningSet& running = state_.requests.running();
  const BlockPool& pool = blocks.cache().device();
  // Without windows, every running request needs at most one more block.
  const int num_sure = pool.num_ready() - pool.num_unreferenced() + blocks.num_free(false);
  if (!blocks.geometry().gives_back() && num_sure >= running.size()) return true;
  const RequestTable& table = state_.requests.table();
  int num_needed = 0;
  for (const auto index : running) num_needed += num_missing_blocks(table.running(index));
  if (num_needed > 0) num_needed -= num_blocks_about_to_return();
  bool room = true;
  while (num_needed > blocks.num_free(false)) {
    const std::optional<Victim> victim = choose_victim();
    if (!victim) break;
    lending_.miss_blocks();
    num_needed -= num_missing_blocks(table.running(running.at(victim->position)));
    preempt(*victim, batch);
    room = false;
  }
  return room;
}

// The blocks without a promise that the request needs for its next step. (In groups without a window, prefill has had
// all its blocks since admission.)
int Preemption::num_missing_blocks(const Running& running) const {
  if (running.promise() != nullptr || running.request().all_scheduled()) return 0;
  const KvCacheManager& cache = state_.blocks.cache();
  const int num_tokens = std::clamp(state_.blocks.remaining(running), 1, state_.config.max_num_tokens);
  return cache.num_missing(running.kv(), cache.length(running.kv()) + num_tokens);
}

// Blocks of requests whose last token is being computed. They become free without a preemption.
int Preemption::num_blocks_about_to_return() const {
  int num_blocks = 0;
  for (const auto index : state_.requests.running()) {
    const Running& running = state_.requests.table().running(index);
    if (running.request().all_scheduled()) num_blocks += state_.blocks.cache().num_exclusive_blocks(running.kv());
  }
  return num_blocks;
}

// Chooses the request that loses the least work; of several, the one of later rank. The first in rank is never chosen:
// it runs to its end, so that requests cannot preempt each other in circles. (If all others have a promise, the first
// in rank waits until one of them ends.)
std::optional<Preemption::Victim> Preemption::choose_victim() const {
  const RunningSet& order = state_.requests.running();
  std::optional<Victim> victim;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t position = 1; position < static_cast<std::size_t>(order.size()); ++position) {
    const Running& running = state_.requests.table().running(order.at(position));
    if (running.promise() != nullptr) continue;
    const bool gains = state_.blocks.cache().num_exclusive_blocks(running.kv()) > 0;
    if (!gains || running.request().all_scheduled()) continue;
    const Loss loss = loss_of(running);
    if (loss.seconds <= least) {
      least = loss.seconds;
      victim = Victim{position, loss.swap};
    }
  }
  return victim;
}

// What the request loses by the cheaper kind of preemption.
Preemption::Loss Preemption::loss_of(const Running& running) const {
  const KvCacheManager& cache = state_.blocks.cache();
  const int num_computed = cache.length(running.kv()) - cache.num_shared_tokens(running.kv());
  const double recompute = costs_.recompute_seconds(std::max(num_computed, 0));
  const int num_used = cache.num_used_blocks(running.kv());
  const bool can_swap = num_used > 0 && num_used <= cache.host().num_ready() && cache.has_host_runs();
  const bool swap = can_swap && costs_.swap_seconds(num_used) < recompute;
  return {swap ? costs_.swap_seconds(num_used) : recompute, swap};
}

void Preemption::preempt(const Victim& victim, StepBatch& batch) {
  Requests& requests = state_.requests;
  const auto index = requests.running().at(victim.position);
  ++requests.table().request(index).num_preemptions;
  if (victim.swap && requests.swap_out(index, batch)) {
    ++num_swapped_;
  } else {
    ++num_recomputed_;
    requests.requeue(index);
  }
}

}  // namespace tl
