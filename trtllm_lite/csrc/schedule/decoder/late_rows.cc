#include "schedule/decoder/late_rows.h"

#include <algorithm>
#include <utility>

#include "schedule/step_time.h"

namespace tl {

void LateRows::take_back(const StepRow& row, const EventSink& sink) {
  ++count_;
  RequestTable& table = state_.requests.table();
  if (!table.alive(row.request)) return;
  Request& request = table.request(row.request.index);
  state_.blocks.settle(table.state(row.request.index), row.num_drafts + 1, state_.steps.launched);
  --request.num_pending;
  const int known_end = row.past_len + row.num_tokens - row.num_drafts;
  if (request.max_scheduled == known_end) --request.max_scheduled;
  Lateness& late = request.late;
  if (late.num_steps++ == 0) late.since = sink.now;
  late.rests = state_.executor.says_late_with_results() || late.num_steps > 1;
  if (sink.now - late.since >= kMostLate) {
    state_.requests.end(row.request.index, FinishReason::kError, takes_too_long(), sink);
  }
}

void LateRows::wake(std::span<const int> slots) {
  for (const auto index : state_.requests.running()) {
    Running& running = state_.requests.table().running(index);
    if (std::ranges::find(slots, running.slot().index()) != slots.end()) running.request().late.rests = false;
  }
}

bool LateRows::wake_all() {
  bool rested = false;
  for (const auto index : state_.requests.running()) {
    rested |= std::exchange(state_.requests.table().request(index).late.rests, false);
  }
  return rested;
}

}  // namespace tl
