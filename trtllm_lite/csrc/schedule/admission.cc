// The part of the Scheduler that admits waiting requests to the running ones.
#include <algorithm>
#include <exception>

#include "schedule/scheduler.h"

namespace tl {

void Scheduler::admit(int num_most, StepBatch& batch, Clock::time_point now, EventBatch& events) {
  auto& entries = waiting_.entries();
  for (auto entry = entries.begin(); entry != entries.end();) {
    if (prefill_budget(batch) == 0 || num_most == 0) return;
    const auto [rank, index] = *entry++;  // admission erases the entry
    const Verdict verdict = try_admit(index, batch, now, events);
    if (verdict == Verdict::kNoRoom) return;  // no later request may pass it
    if (verdict == Verdict::kAdmitted) --num_most;
  }
}

Scheduler::Verdict Scheduler::try_admit(Index index, StepBatch& batch, Clock::time_point now, EventBatch& events) {
  RequestState& state = table_.state(index);
  Request& request = request_of(state);
  if (num_wanted_slabs_ > 0 && !cache_.lent().leaving()) return Verdict::kNoRoom;  // what becomes free is lent first
  if (request.num_pending > 0) return Verdict::kNoRoom;  // it was preempted while its last tokens are still in flight
  if (num_rows_ + request.max_rows() > config_.max_batch_size) return Verdict::kNoRoom;
  if (slots_.num_ready() < request.max_rows()) return Verdict::kNoRoom;
  auto* swapped = std::get_if<Swapped>(&state);
  const int num_tokens = static_cast<int>(request.tokens.size());
  const bool may_reuse = !request.spec.prompt_outputs || request.outputs_from >= request.num_prompt;
  PrefixHit hit;
  const int length = swapped ? cache_.length(swapped->kv()) : 0;
  if (may_reuse) hit = cache_.find_prefix(chain(request), swapped ? length : num_tokens, length);
  if (hit.being_written && !swapped && request.num_holds < kMaxHolds) {
    ++request.num_holds;
    return Verdict::kHeld;
  }
  const int num_computed = swapped ? length : hit.num_blocks * cache_.config().tokens_per_block;
  if (!config_.enable_chunked_context && num_tokens - num_computed > budget(batch)) return Verdict::kNoRoom;
  if (!fits(request, num_computed, hit)) {
    miss_blocks();
    return Verdict::kNoRoom;
  }

  Slot slot = *slots_.acquire();
  if (!claim_slot(index, slot, now, events)) return Verdict::kRefused;
  KvSequence kv = swapped ? *cache_.swap_in(swapped->kv(), hit, batch.copies)
                          : cache_.open(chain(request), hit, request.max_kv_len(), batch.copies);
  Grant granted = grant(request, std::move(slot), std::move(kv));
  if (swapped) {
    state = resume(std::move(*swapped), std::move(granted));
  } else {
    state = start(std::move(std::get<Waiting>(state)), std::move(granted));
  }
  if (!request.admitted) {
    request.admitted = now;
    request.num_cached_tokens = num_computed;
  }
  request.late.rests = false;  // no row of the new slot has been late
  waiting_.erase(request.rank, index);
  const auto behind = [&](Index other) { return request.rank < table_.request(other).rank; };
  running_.insert(std::ranges::find_if(running_, behind), index);
  num_rows_ += request.max_rows();
  // All known tokens get their blocks now, so that the rest of a prompt never causes a preemption.
  reserve(table_.running(index), table_.running(index).kv(), num_tokens, batch);
  add_row(index, std::min(num_tokens - num_computed, prefill_budget(batch)), {}, batch);
  return Verdict::kAdmitted;
}

bool Scheduler::fits(const Request& request, int num_computed, const PrefixHit& hit) const {
  const KvGeometry& geometry = cache_.geometry();
  const int num_needed = geometry.num_needed(num_computed, static_cast<int>(request.tokens.size())) - hit.num_held;
  if (num_needed + hit.num_unreferenced > cache_.device().num_ready() || !cache_.has_run_beside(hit)) return false;
  // A request with a promise takes only promised blocks, and a request that ends only frees blocks: promises stay
  // covered.
  const bool promised = needs_promise(request);
  const int num_shared = promised || !promises_.empty() ? hit.num_shared : 0;
  const int free = num_free(promised) - hit.num_unreferenced - num_shared;
  if (promised) return free >= request.max_blocks(geometry, num_computed) - hit.num_held;
  // One block per running request and cache group that grows is kept free; otherwise admissions would only cause
  // preemptions. Keeping none repeats more work, keeping two leaves memory idle for longer; both cost time
  // (tests/unit/schedule/bench_policies.cc).
  return free - num_needed >= std::ssize(running_) * geometry.num_growing_groups();
}

bool Scheduler::needs_promise(const Request& request) const {
  return config_.policy == CapacityPolicy::kGuaranteedNoEvict || request.is_search();
}

Grant Scheduler::grant(const Request& request, Slot slot, KvSequence kv) {
  Grant grant{std::move(slot), std::move(kv), {}, {}};
  if (needs_promise(request)) {
    const int most = request.max_blocks(cache_.geometry(), cache_.length(grant.kv));
    grant.promise.emplace(promises_, most - cache_.num_held_blocks(grant.kv));
  }
  if (request.is_search()) {
    std::vector<Slot> others;
    for (int i = 1; i < request.spec.num_beams; ++i) others.push_back(*slots_.acquire());
    grant.beams = std::make_unique<BeamGroup>(grant.slot.index(), std::move(others));
  }
  return grant;
}

bool Scheduler::claim_slot(Index index, const Slot& slot, Clock::time_point now, EventBatch& events) {
  const Request& request = table_.request(index);
  std::string message = "the executor threw an exception of unknown type";
  try {
    executor_.set_slot(slot.index(), request.spec.params, request.tokens, request.num_prompt);
    return true;
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {  // the message below says what happened
  }
  remove(index, FinishReason::kError, std::move(message), now, events);
  return false;
}

// Without chunked context, a long prompt would wait as long as other requests decode. So it gets a step of its own,
// at most every other step.
bool Scheduler::head_needs_a_step_of_its_own() const {
  if (config_.enable_chunked_context || !last_step_decoded_ || waiting_.empty()) return false;
  const Request& head = table_.request(waiting_.head());
  return head.num_total() > config_.max_num_tokens - num_rows_;
}

}  // namespace tl
