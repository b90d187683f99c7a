// Rows of requests that generate without drafts, and of beam searches.
#pragma once

#include "schedule/decoder/schedule_state.h"
#include "schedule/decoder/step_shares.h"
#include "schedule/decoder/step_writer.h"

namespace tl {

// Adds the next token of every request that has one, within the step's shares, and the beams of every search. Returns
// whether other running requests have prefill left.
bool add_decode_rows(ScheduleState& state, const StepShares& shares, StepWriter& step);

}  // namespace tl
