// Results of steps: tokens, ends, and failures.
#pragma once

#include <span>

#include "schedule/decoder/draft_rows.h"
#include "schedule/decoder/late_rows.h"
#include "schedule/decoder/schedule_state.h"
#include "schedule/event_sink.h"

namespace tl {

// Turns the results of a step into tokens of its requests, and into events. One exists for a call of the scheduler.
class Completion {
 public:
  // Borrows the arguments.
  Completion(ScheduleState& state, DraftRows& drafts, LateRows& late, const EventSink& sink)
      : state_(state), drafts_(drafts), late_(late), sink_(sink) {}

  // Takes the results of a step's rows.
  void take(const StepBatch& batch, StepResult& result);
  // Ends the requests that are to blame for the failure of these steps; others in them wait again, keeping their
  // tokens.
  void abandon(std::span<const StepBatch* const> batches, const StepError& error);

 private:
  using Index = RequestTable::Index;

  void take_row(const StepRow& row, RowResult& result);
  void accept_tokens(Index index, RowResult& result);
  void advance_search(Index index, RowResult& result);
  void push_outputs(Index index, RowResult& result);
  void abandon_row(const StepRow& row, const StepError& error);

  ScheduleState& state_;
  DraftRows& drafts_;
  LateRows& late_;
  EventSink sink_;
};

}  // namespace tl
