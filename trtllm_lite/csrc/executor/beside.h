// What steps of an encoder may compute beside a paused one, and the values that they keep meanwhile.
#pragma once

#include <cstdint>
#include <map>

#include "engine/engine.h"
#include "executor/step.h"

namespace tl {

// In the following, `most` is the most tokens of a text that is short, and of a step beside a paused one.

// Returns the bounds of steps beside a paused one; nothing if the encoder takes no longer texts.
StepBounds beside_bounds(const Manifest& manifest, int most);

// The largest extents of steps beside a paused one, of an engine whose steps have the largest extents `all`.
Extents beside_extents(Extents all, int most);

// The plan's arena in such steps: maps each offset of tensors to the bytes of the largest of them. Tensors of one
// offset may use the same memory, and those of different offsets may not be given the same.
std::map<std::int64_t, std::int64_t> beside_arena(const Plan& plan, int most);

}  // namespace tl
