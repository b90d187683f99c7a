// How requests are dealt out over the steps in flight of a pipeline.
#pragma once

#include <cstdint>
#include <limits>

#include "schedule/decoder/schedule_state.h"

namespace tl {

// How many requests may have rows in a step: decoding ones, and others.
struct StepShares {
  int num_decoding = std::numeric_limits<int>::max();
  int num_prefilling = std::numeric_limits<int>::max();
};

// Whether the request's next token is not known when the stages compute `step`, so that it has no row there.
bool is_under_way(const StepNumbers& steps, const Request& request, std::uint64_t step);

// The shares of the step in preparation.
StepShares shares_of(const ScheduleState& state, std::uint64_t step);

}  // namespace tl
