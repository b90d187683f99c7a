#include "schedule/decoder/decode_rows.h"

namespace tl {

bool add_decode_rows(ScheduleState& state, const StepShares& shares, StepWriter& step) {
  bool has_prefill = false;
  const auto has_share = [&] { return step.num_rows() < shares.num_decoding; };
  for (const auto index : state.requests.running()) {
    const Running& running = state.requests.table().running(index);
    // A request that gets no block waits for the next step: blocks that steps in flight still use are ready by then.
    if (running.beams() != nullptr && running.beams()->ready()) {
      if (has_share()) step.add_beam_rows(index);
      continue;
    }
    const int num_tokens = state.blocks.remaining(running);
    has_prefill = has_prefill || num_tokens > 1;
    const Request& request = running.request();
    if (num_tokens != 1 || request.all_scheduled() || request.drafts() || request.late.rests) {
      continue;
    }
    if (has_share() && !is_under_way(state.steps, request, step.number())) step.add_row(index, 1);
  }
  return has_prefill;
}

}  // namespace tl
