#include "schedule/decoder/completion.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>

namespace tl {

void Completion::take(const StepBatch& batch, StepResult& result) {
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const StepRow& row = batch.rows[i];
    const bool of_the_same_search = i > 0 && row.request == batch.rows[i - 1].request;
    // If the request ended while this step was in flight, its row is discarded.
    if (!of_the_same_search && state_.requests.table().alive(row.request)) take_row(row, result.rows[i]);
    if (result.rows[i].is_late && state_.executor.says_late_with_results()) late_.take_back(row, sink_);
  }
}

void Completion::take_row(const StepRow& row, RowResult& result) {
  const Index index = row.request.index;
  Request& request = state_.requests.table().request(index);
  if (result.is_late) {  // its tokens were taken back; outputs of its prompt still count
    push_outputs(index, result);
    return;
  }
  if (!result.error.empty()) {
    state_.requests.end(index, FinishReason::kError, std::move(result.error), sink_);
    return;
  }
  const int num_kept = result.tokens.size() - 1;
  if (num_unsettled(request, row) > 0) {
    state_.blocks.settle(state_.requests.table().state(index), row.num_drafts - num_kept, state_.steps.launched);
  }
  if (row.num_drafts > 0) drafts_.learn(request, row, num_kept);
  if (row.sample && request.is_search()) {
    advance_search(index, result);
  } else if (row.sample) {
    accept_tokens(index, result);
  } else {
    push_outputs(index, result);
  }
}

void Completion::push_outputs(Index index, RowResult& result) {
  if (!result.outputs) return;
  sink_.events.tokens.push_back({state_.requests.table().request(index).id, {}, std::move(result.outputs), 0});
}

void Completion::accept_tokens(Index index, RowResult& result) {
  Request& request = state_.requests.table().request(index);
  --request.num_pending;
  request.late = {};
  if (!request.first_token) request.first_token = sink_.now;
  const int num_before = static_cast<int>(request.tokens.size()) - request.num_prompt;
  std::optional<FinishReason> reason;
  int num_accepted = 0;
  for (const std::int32_t token : result.tokens) {
    request.tokens.push_back(token);
    ++num_accepted;
    reason = request.finish_reason();
    if (reason) break;
  }
  result.tokens.cut(num_accepted);  // drops the tokens after the end
  sink_.events.tokens.push_back({request.id, std::move(result.tokens), std::move(result.outputs), num_before});
  // The tokens are known now, so their block may be full and shareable. Nothing is shared if the request was preempted
  // meanwhile or has ended: what the step in flight writes after an end is invalid, because the device may skip the row
  // after an end id (StepExecutor::launch), and the slot of the request's adapter may be refilled before that step is
  // over.
  const auto* running = std::get_if<Running>(&state_.requests.table().state(index));
  const bool ends_in_flight = reason == FinishReason::kEndId || reason == FinishReason::kStopSequence;
  if (running != nullptr && !ends_in_flight) {
    state_.blocks.cache().commit(running->kv(), chain_of(request), state_.steps.launched);
  }
  if (reason) state_.requests.end(index, *reason, {}, sink_);
}

void Completion::advance_search(Index index, RowResult& result) {
  Running& running = state_.requests.table().running(index);
  Request& request = running.request();
  ++request.num_searched;
  if (!request.first_token) request.first_token = sink_.now;
  push_outputs(index, result);
  const bool at_limit = request.num_searched == request.spec.max_new_tokens;
  if (result.moves.empty()) {
    state_.requests.end(index, at_limit ? FinishReason::kLength : FinishReason::kEndId, {}, sink_);
    return;
  }
  if (at_limit) throw std::logic_error("the executor searches on after max_new_tokens");
  state_.blocks.move_beams(running, result.moves);
}

void Completion::abandon(std::span<const StepBatch* const> batches, const StepError& error) {
  const std::uint64_t first_step = batches.front()->step;
  state_.blocks.cache().forget_written_since(first_step);
  for (const StepBatch* batch : batches) {
    state_.step_ended(batch->step);
    for (const StepRow& row : batch->rows) {
      if (state_.requests.table().alive(row.request)) abandon_row(row, error);
    }
  }
  // If the error names no slots, every running request may have lost content, even one without a row in these steps.
  const RunningSet& running = state_.requests.running();
  while (error.slots().empty() && !running.empty()) {
    state_.requests.end(running.last(), FinishReason::kError, error.what(), sink_);
  }
  state_.requests.drop_swapped_since(first_step);
}

void Completion::abandon_row(const StepRow& row, const StepError& error) {
  const Index index = row.request.index;
  Request& request = state_.requests.table().request(index);
  request.num_pending = 0;
  request.outputs_from = std::min(request.outputs_from, std::max(row.past_len, row.outputs_from));
  const auto blamed = [&](int slot) {
    return error.slots().empty() || std::ranges::find(error.slots(), slot) != error.slots().end();
  };
  if (blamed(row.slot) || blamed(row.request_slot)) {
    state_.requests.end(index, FinishReason::kError, error.what(), sink_);
  } else if (std::holds_alternative<Running>(state_.requests.table().state(index))) {
    state_.requests.requeue(index);
  }
}

}  // namespace tl
