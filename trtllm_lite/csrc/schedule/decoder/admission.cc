#include "schedule/decoder/admission.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tl {

bool Admission::head_needs_a_step_of_its_own() const {
  const Requests& requests = state_.requests;
  if (state_.config.enable_chunked_context || !last_step_decoded_ || requests.waiting().empty()) return false;
  const Request& head = requests.table().request(requests.waiting().head());
  return head.num_total() > state_.config.max_num_tokens - requests.running().num_rows();
}

void Admission::admit(const StepShares& shares, StepWriter& step, const EventSink& sink) {
  int num_most = shares.num_prefilling;
  auto& entries = state_.requests.waiting().entries();
  for (auto entry = entries.begin(); entry != entries.end();) {
    if (prefill_.budget(step) == 0 || num_most == 0) return;
    const auto [rank, index] = *entry++;  // admission erases the entry
    const Verdict verdict = try_admit(index, step, sink);
    if (verdict == Verdict::kNoRoom) return;  // no later request may pass it
    if (verdict == Verdict::kAdmitted) --num_most;
  }
}

void Admission::admit_short_prompts(int kept, StepShares& shares, StepWriter& step, const EventSink& sink) {
  auto& entries = state_.requests.waiting().entries();
  for (auto entry = entries.begin(); entry != entries.end() && shares.num_prefilling > 0;) {
    const auto [rank, index] = *entry++;  // admission erases the entry
    if (num_uncomputed(index) > prefill_.budget(step) - kept) continue;
    Request& head = state_.requests.table().request(state_.requests.waiting().head());
    const bool passes = head.rank < rank;
    if (passes && head.num_passed == state_.config.ageing_window) return;
    const Verdict verdict = try_admit(index, step, sink);
    if (verdict == Verdict::kNoRoom) return;
    if (verdict != Verdict::kAdmitted) continue;
    if (passes) ++head.num_passed;
    --shares.num_prefilling;
  }
}

Admission::Verdict Admission::try_admit(Index index, StepWriter& step, const EventSink& sink) {
  Request& request = state_.requests.table().request(index);
  if (!may_run(request)) return Verdict::kNoRoom;
  const Found found = find(index);
  const bool is_swapped = std::holds_alternative<Swapped>(state_.requests.table().state(index));
  if (found.hit.being_written && !is_swapped && request.num_holds < kMaxHolds) {
    ++request.num_holds;
    return Verdict::kHeld;
  }
  const int num_left = static_cast<int>(request.tokens.size()) - found.num_computed;
  if (!state_.config.enable_chunked_context && num_left > step.budget()) return Verdict::kNoRoom;
  if (!fits(request, found)) {
    lending_.miss_blocks();
    return Verdict::kNoRoom;
  }
  Slot slot = *state_.slots.acquire();
  if (!claim_slot(index, slot, sink)) return Verdict::kRefused;
  start(index, found, grant(index, found.hit, std::move(slot), step), step, sink.now);
  return Verdict::kAdmitted;
}

// Whether a request may be added to the running ones if the cache has room for it.
bool Admission::may_run(const Request& request) const {
  if (lending_.holds_back_admission()) return false;
  if (request.num_pending > 0) return false;  // it was preempted while its last tokens are still in flight
  if (state_.requests.running().num_rows() + request.max_rows() > state_.config.max_batch_size) return false;
  return state_.slots.num_ready() >= request.max_rows();
}

Admission::Found Admission::find(Index index) {
  RequestState& state = state_.requests.table().state(index);
  Request& request = request_of(state);
  KvCacheManager& cache = state_.blocks.cache();
  const auto* swapped = std::get_if<Swapped>(&state);
  const int length = swapped ? cache.length(swapped->kv()) : 0;
  const bool may_reuse = !request.spec.prompt_outputs || request.outputs_from >= request.num_prompt;
  const int most = swapped ? length : static_cast<int>(request.tokens.size());
  Found found{};
  if (may_reuse) found.hit = cache.find_prefix(chain_of(request), most, length);
  found.num_computed = swapped ? length : found.hit.num_blocks * cache.config().tokens_per_block;
  return found;
}

// Whether the cache has room for the request.
bool Admission::fits(const Request& request, const Found& found) const {
  const KvBlocks& blocks = state_.blocks;
  const KvGeometry& geometry = blocks.geometry();
  const PrefixHit& hit = found.hit;
  const int num_tokens = static_cast<int>(request.tokens.size());
  const int num_needed = geometry.num_needed(found.num_computed, num_tokens) - hit.num_held;
  if (num_needed + hit.num_unreferenced > blocks.cache().device().num_ready()) return false;
  if (!blocks.cache().has_run_beside(hit)) return false;
  // A request with a promise takes only promised blocks, and a request that ends only frees blocks: promises stay
  // covered.
  const bool promised = blocks.needs_promise(request);
  const int num_shared = promised || !blocks.promises().empty() ? hit.num_shared : 0;
  const int free = blocks.num_free(promised) - hit.num_unreferenced - num_shared;
  if (promised) return free >= request.max_blocks(geometry, found.num_computed) - hit.num_held;
  // One block per running request and cache group that grows is kept free; otherwise admissions would only cause
  // preemptions. Keeping none repeats more work, keeping two leaves memory idle for longer; both cost time
  // (tests/unit/schedule/bench_policies.cc).
  return free - num_needed >= state_.requests.running().size() * geometry.num_growing_groups();
}

// Gives the slot to the request on the device, too. Returns false if the request ended because that failed.
bool Admission::claim_slot(Index index, const Slot& slot, const EventSink& sink) {
  const Request& request = state_.requests.table().request(index);
  std::string message = "the executor threw an exception of unknown type";
  try {
    state_.executor.set_slot(slot.index(), request.spec.params, request.tokens, request.num_prompt);
    return true;
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {  // the message above says what happened
  }
  state_.requests.end(index, FinishReason::kError, std::move(message), sink);
  return false;
}

Grant Admission::grant(Index index, const PrefixHit& hit, Slot slot, StepWriter& step) {
  RequestState& state = state_.requests.table().state(index);
  Request& request = request_of(state);
  KvCacheManager& cache = state_.blocks.cache();
  std::vector<CopyOrder>& copies = step.batch().copies;
  auto* swapped = std::get_if<Swapped>(&state);
  KvSequence kv = swapped ? *cache.swap_in(swapped->kv(), hit, copies)
                          : cache.open(chain_of(request), hit, request.max_kv_len(), copies);
  std::optional<Promise> promise = state_.blocks.promise(request, kv);
  Grant granted{std::move(slot), std::move(kv), std::move(promise), {}};
  if (request.is_search()) {
    std::vector<Slot> others;
    for (int i = 1; i < request.spec.num_beams; ++i) others.push_back(*state_.slots.acquire());
    granted.beams = std::make_unique<BeamGroup>(granted.slot.index(), std::move(others));
  }
  return granted;
}

void Admission::start(Index index, const Found& found, Grant granted, StepWriter& step, Clock::time_point now) {
  state_.requests.run(index, std::move(granted));
  Running& running = state_.requests.table().running(index);
  Request& request = running.request();
  request.parted_at =
      found.hit.reach.empty() ? 0 : found.hit.reach.front() * state_.blocks.cache().config().tokens_per_block;
  if (!request.admitted) {
    request.admitted = now;
    request.num_cached_tokens = found.num_computed;
  }
  request.late.rests = false;  // no row of the new slot has been late
  // All known tokens get their blocks now, so that the rest of a prompt never causes a preemption.
  const int num_tokens = static_cast<int>(request.tokens.size());
  step.reserve(running, num_tokens);
  step.add_row(index, std::min(num_tokens - found.num_computed, prefill_.budget(step)));
}

// The number of tokens that a waiting request must compute after admission if the cache has none.
int Admission::num_uncomputed(Index index) const {
  const RequestState& state = state_.requests.table().state(index);
  const auto* swapped = std::get_if<Swapped>(&state);
  return request_of(state).num_total() - (swapped == nullptr ? 0 : state_.blocks.cache().length(swapped->kv()));
}

}  // namespace tl
