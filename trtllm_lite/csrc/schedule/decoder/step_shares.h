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

// Whether the request's next token is unknown until after `step` is launched, so that it has no row there. With one
// stage, the tokens of a step are known before the next one computes. In a pipeline, the step in preparation is
// launched before the tokens of the last num_stages - 1 steps are known.
inline bool is_under_way(const StepNumbers& steps, const Request& request, std::uint64_t step) {
  return steps.num_stages > 1 && request.num_pending > 0 && step < request.sampling_step + steps.num_stages;
}

// The shares of the step in preparation.
StepShares shares_of(const ScheduleState& state, std::uint64_t step);

}  // namespace tl
