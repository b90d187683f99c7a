// The memory of steps of an encoder beside a paused one on CPUs.
#pragma once

#include <cstddef>

#include "engine/engine.h"
#include "host/step_inputs.h"

namespace tl {

// The limits of steps beside a paused one, of an engine whose steps have `limits`.
StepLimits beside_limits(StepLimits limits);

// The bytes of an arena that such steps touch: its layout is that of all steps, but each tensor begins to use its range
// at the front, and only pages that are used take memory.
std::size_t beside_arena_bytes(const Plan& plan);

}  // namespace tl
