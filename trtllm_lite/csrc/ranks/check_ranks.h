// Checks whether engines are the ranks of one model.
#pragma once

#include <span>

#include "engine/engine.h"

namespace tl {

// Throws EngineError unless `engines` are all ranks of one build, in order, and each stage receives what the one before
// sends.
void check_ranks(std::span<const Engine* const> engines);

// Throws EngineError unless `engines` are all ranks of one stage of a build, in order.
void check_stage(std::span<const Engine* const> engines);

}  // namespace tl
