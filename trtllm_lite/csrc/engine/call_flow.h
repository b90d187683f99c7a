// The calls of a plan in order: schemas, step inputs, and what is alive in the arena when.
#pragma once

#include "engine/plan.h"
#include "engine/plan_check.h"

namespace tl {

// Throws EngineError if a call is not allowed; see check_plan. Tensors have passed check_tensor.
std::vector<ValueBound> check_calls(const Plan& plan, std::int64_t tokens_per_block);

}  // namespace tl
