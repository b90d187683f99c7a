// Scheduler: which waiting requests join the running ones.
#include <algorithm>
#include <exception>

#include "batching/scheduler.h"

namespace tl {

void Scheduler::admit(StepBatch& batch, Clock::time_point now, EventBatch& events) {
  auto& entries = waiting_.entries();
  for (auto entry = entries.begin(); entry != entries.end();) {
    if (budget(batch) == 0 || slots_.num_ready() == 0) return;
    if (std::ssize(running_) == config_.max_batch_size) return;
    const auto [rank, index] = *entry++;                                   // admission erases the entry
    if (try_admit(index, batch, now, events) == Verdict::kNoRoom) return;  // nobody passes it
  }
}

Scheduler::Verdict Scheduler::try_admit(Index index, StepBatch& batch, Clock::time_point now, EventBatch& events) {
  RequestState& state = table_.state(index);
  Request& request = request_of(state);
  auto* swapped = std::get_if<Swapped>(&state);
  const int num_tokens = static_cast<int>(request.tokens.size());
  const bool may_reuse = !request.spec.prompt_outputs || request.outputs_from >= request.num_prompt;
  PrefixHit hit;
  if (may_reuse) hit = cache_.find_prefix(chain(request), swapped ? cache_.length(swapped->kv()) : num_tokens);
  if (hit.being_written && !swapped && request.num_holds < kMaxHolds) {
    ++request.num_holds;
    return Verdict::kHeld;
  }
  const int num_hit = static_cast<int>(hit.blocks.size());
  const int num_computed = swapped ? cache_.length(swapped->kv()) : num_hit * cache_.config().tokens_per_block;
  if (!config_.enable_chunked_context && num_tokens - num_computed > budget(batch)) return Verdict::kNoRoom;
  if (!fits(request, cache_.num_blocks_for(num_tokens) - num_hit, hit)) return Verdict::kNoRoom;

  Slot slot = *slots_.acquire();
  if (!claim_slot(index, slot, now, events)) return Verdict::kRefused;
  if (swapped) {
    KvSequence kv = *cache_.swap_in(swapped->kv(), hit, batch.copies);
    state = resume(std::move(*swapped), std::move(slot), std::move(kv));
  } else {
    KvSequence kv = cache_.open(chain(request), hit, request.max_kv_len());
    state = start(std::move(std::get<Waiting>(state)), std::move(slot), std::move(kv));
  }
  if (!request.admitted) {
    request.admitted = now;
    request.num_cached_tokens = num_computed;
  }
  waiting_.erase(request.rank, index);
  const auto behind = [&](Index other) { return request.rank < table_.request(other).rank; };
  running_.insert(std::ranges::find_if(running_, behind), index);
  // All known tokens get their blocks now: a half-computed prompt must never be what a request is preempted for.
  cache_.reserve(table_.running(index).kv(), num_tokens, batch.copies);
  add_row(index, std::min(num_tokens - num_computed, budget(batch)), batch);
  return Verdict::kAdmitted;
}

bool Scheduler::fits(const Request& request, int num_needed, const PrefixHit& hit) const {
  if (num_needed + hit.num_unreferenced > cache_.device().num_ready()) return false;
  const int unreferenced = cache_.device().num_unreferenced() - hit.num_unreferenced;
  if (config_.policy == CapacityPolicy::kGuaranteedNoEvict) {
    // Growth takes as many blocks from one side as from the other and an end only adds, so it stays true.
    const int num_ever_needed = cache_.num_blocks_for(request.max_kv_len()) - static_cast<int>(hit.blocks.size());
    return unreferenced - reserved_growth() >= num_ever_needed;
  }
  // Room for every running request to grow for a while, or admissions would only feed preemptions. How long a while is
  // learnt: a preemption widens it, requests that end narrow it again.
  const int headroom = static_cast<int>(headroom_ * static_cast<double>(running_.size()));
  return unreferenced - num_needed >= headroom;
}

// Blocks that running requests may still come to need.
int Scheduler::reserved_growth() const {
  int num_blocks = 0;
  for (const Index index : running_) {
    const auto& running = std::get<Running>(table_.state(index));
    const int held = static_cast<int>(cache_.blocks(running.kv()).size());
    num_blocks += std::max(cache_.num_blocks_for(running.request().max_kv_len()) - held, 0);
  }
  return num_blocks;
}

bool Scheduler::claim_slot(Index index, const Slot& slot, Clock::time_point now, EventBatch& events) {
  const Request& request = table_.request(index);
  std::string message = "the executor threw an exception of unknown type";
  try {
    executor_.set_slot(slot.index(), request.spec.params, request.tokens, request.num_prompt);
    return true;
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {  // the message says it
  }
  remove(index, FinishReason::kError, std::move(message), now, events);
  return false;
}

// Without chunked context a long prompt would wait for as long as others decode. So it gets a step without them, at
// most every other one.
bool Scheduler::head_needs_a_step_of_its_own() const {
  if (config_.enable_chunked_context || !last_step_decoded_ || waiting_.empty()) return false;
  const Request& head = table_.request(waiting_.entries().begin()->second);
  return head.num_total() > config_.max_num_tokens - std::ssize(running_);
}

}  // namespace tl
