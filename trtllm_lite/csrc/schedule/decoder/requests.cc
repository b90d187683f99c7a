#include "schedule/decoder/requests.h"

#include <span>
#include <utility>
#include <variant>

namespace tl {

Requests::Requests(const SchedulerConfig& config, KvBlocks& blocks)
    : config_(config), blocks_(blocks), running_(table_, config.max_batch_size) {}

void Requests::add(std::unique_ptr<Request> request, Ranks& ranks) {
  request->hashes.reserve(blocks_.geometry().num_blocks_for(request->max_kv_len()));
  request->rank = ranks.next(request->spec.priority);
  if (config_.drafter && !request->is_search()) request->draft_state = config_.drafter->start(*request);
  if (const DraftState* drafts = request->draft_state.get()) {
    request->max_draft_len = config_.max_draft_len;
    if (drafts->proposes) request->rest = 0;
    if (drafts->forces) request->forced_rest = 0;
    ++num_drafters_;
  }
  const Index index = table_.add(Waiting(std::move(request)));
  const Request& added = table_.request(index);
  waiting_.insert(added.rank, index);
  if (added.deadline) deadlines_.add(*added.deadline, index);
}

void Requests::run(Index index, Grant grant) {
  RequestState& state = table_.state(index);
  if (auto* swapped = std::get_if<Swapped>(&state)) {
    state = resume(std::move(*swapped), std::move(grant));
  } else {
    state = start(std::move(std::get<Waiting>(state)), std::move(grant));
  }
  waiting_.erase(request_of(state).rank, index);
  running_.insert(index);
}

void Requests::requeue(Index index) {
  RequestState& state = table_.state(index);
  state = preempt(std::move(std::get<Running>(state)));
  Request& request = request_of(state);
  request.num_searched = 0;
  running_.erase(index);
  waiting_.insert(request.rank, index);
}

bool Requests::swap_out(Index index, StepBatch& batch) {
  std::optional<Swapped> swapped = tl::swap_out(table_.running(index), blocks_.cache(), batch);
  if (!swapped) return false;
  table_.state(index) = std::move(*swapped);
  running_.erase(index);
  waiting_.insert(table_.request(index).rank, index);
  return true;
}

void Requests::drop_swapped_since(std::uint64_t first_step) {
  table_.for_each([&](Index index) {
    RequestState& state = table_.state(index);
    auto* swapped = std::get_if<Swapped>(&state);
    if (swapped && swapped->step() >= first_step) state = drop_swapped(std::move(*swapped));
  });
}

void Requests::end(Index index, FinishReason reason, std::string message, const EventSink& sink) {
  Request& ending = table_.request(index);
  // The error may be in content that the request left in the cache, also if it was preempted meanwhile.
  if (reason == FinishReason::kError && ending.max_scheduled > 0) blocks_.cache().forget(chain_of(ending));
  if (std::holds_alternative<Running>(table_.state(index))) {
    running_.erase(index);
  } else {
    waiting_.erase(ending.rank, index);
  }
  const std::unique_ptr<Request> request = table_.remove(index);
  if (request->deadline) deadlines_.remove(*request->deadline, index);
  if (request->draft_state) --num_drafters_;
  if (request->draft_state && reason != FinishReason::kError) {
    const auto generated = std::span(request->tokens).subspan(static_cast<std::size_t>(request->num_prompt));
    config_.drafter->end(*request->draft_state, generated);
  }
  sink.events.ends.push_back({request->id, reason, std::move(message), request->timings(sink.now)});
}

}  // namespace tl
