// Rows whose masks are late (StepExecutor::late_rows).
#pragma once

#include <cstdint>
#include <span>

#include "schedule/decoder/schedule_state.h"
#include "schedule/event_sink.h"

namespace tl {

// Takes late rows back and lets their requests rest: a request whose masks were late gets no more rows until a result
// says that its masks are ready, because late rows cost the others time. (If late rows are known before results, it
// gets a row at once.)
class LateRows {
 public:
  // Borrows `state`.
  explicit LateRows(ScheduleState& state) : state_(state) {}

  // Takes back what a row in flight computes. A request whose masks have been late for too long ends with an error.
  void take_back(const StepRow& row, const EventSink& sink);
  // Lets requests in these slots have rows again.
  void wake(std::span<const int> slots);
  // Lets all requests have rows again. Returns false if none rested.
  bool wake_all();

  std::int64_t count() const { return count_; }

 private:
  ScheduleState& state_;
  std::int64_t count_ = 0;
};

}  // namespace tl
