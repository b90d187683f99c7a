// Whether engines are the ranks of one model.
#pragma once

#include <span>

#include "engine/engine.h"

namespace tl {

// Throws EngineError unless `engines` are all ranks of one build, in their order.
void check_ranks(std::span<const Engine* const> engines);

}  // namespace tl
