// The memory of steps of an encoder beside a paused one on CPUs.
#pragma once

#include <cstddef>

#include "engine/engine.h"
#include "host/step_inputs.h"

namespace tl {

// The most tokens of a text that is short, and of a step beside a paused one. A step of half as many takes about as
// long as one of a single token, because it reads all weights in any case (StepPace::kLeastPrefill).
constexpr int kBesideTokens = 128;

// The limits of steps beside a paused one, of an engine whose steps have `limits`.
StepLimits beside_limits(StepLimits limits);

// The bytes of an arena that such steps touch: its layout is that of all steps, but each tensor begins to use its range
// at the front, and only pages that are used take memory.
std::size_t beside_arena_bytes(const Plan& plan);

}  // namespace tl
