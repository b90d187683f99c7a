// The part of the Scheduler that steps beam searches whose prompts are computed.
#include <stdexcept>

#include "schedule/scheduler.h"

namespace tl {

// Adds the newest token of every beam to the step, or no token at all: the search needs the logits of all beams at
// once.
void Scheduler::add_beam_rows(Index index, StepBatch& batch) {
  Running& running = table_.running(index);
  BeamGroup& group = *running.beams();
  // Each beam needs at most one block of each cache group. These blocks are promised: they are ready at the latest when
  // the steps in flight have ended.
  const BlockPool& pool = cache_.device();
  const auto num_needed = std::ssize(group.beams()) * cache_.geometry().num_groups();
  if (pool.num_ready() < num_needed && pool.num_ready() < pool.num_unreferenced()) return;
  for (const Beam& beam : group.beams()) {
    if (!reserve(running, beam.kv, cache_.length(beam.kv) + 1, batch)) {
      throw std::logic_error("a block that was promised to a beam search is not there");
    }
  }
  for (const Beam& beam : group.beams()) {
    StepRow& row = push_row(index, beam.slot, beam.kv, 1, 0, batch);
    row.num_generated = running.request().num_searched;
    row.sample = true;
    cache_.advance(beam.kv, row.num_tokens);
    batch.token_ids.push_back(beam.token);
    ++batch.num_decode_tokens;
    leave_behind(running, beam.kv, batch.step);
  }
  group.launched();
}

void Scheduler::advance_search(Index index, RowResult& result, Clock::time_point now, EventBatch& events) {
  Running& running = table_.running(index);
  Request& request = running.request();
  ++request.num_searched;
  if (!request.first_token) request.first_token = now;
  if (result.outputs) events.tokens.push_back({request.id, {}, std::move(result.outputs), 0});
  const bool at_limit = request.num_searched == request.spec.max_new_tokens;
  if (result.moves.empty()) {
    remove(index, at_limit ? FinishReason::kLength : FinishReason::kEndId, {}, now, events);
    return;
  }
  if (at_limit) throw std::logic_error("the executor searches on after max_new_tokens");
  const int num_claimed = cache_.num_claimed();
  running.beams()->move(result.moves, running.kv(), cache_);
  running.promise()->take(cache_.num_claimed() - num_claimed);
}

}  // namespace tl
