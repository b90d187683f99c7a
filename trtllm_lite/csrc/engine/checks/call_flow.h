// Checks the calls of a CPU plan in order: schemas, step inputs, and which tensors the arena holds at each call.
#pragma once

#include "engine/checks/plan_check.h"

namespace tl {

// Throws EngineError unless every call satisfies its operator's schema; is given the step inputs that the schema asks
// for; reads only what was written before and not overwritten since; has only constant indices that are in bounds; and
// writes to arena tensors that overlap none of its other operands, or in place where the schema allows it. Tensors must
// have passed check_tensors.
std::vector<ValueBound> check_calls(const Plan& plan, const Container& container, std::int64_t tokens_per_block);

}  // namespace tl
