// Checks of the decoder's schedule.
#pragma once

#include "schedule/decoder/schedule_state.h"

namespace tl {

// Throws std::logic_error if queue, running requests, states, promises and cache contradict each other.
void check_integrity(const ScheduleState& state);

}  // namespace tl
