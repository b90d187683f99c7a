// Where the tensors of a plan lie.
#pragma once

#include "engine/container.h"
#include "engine/plan.h"

namespace tl {

// Throws EngineError unless the tensor's dtype, shape and offset are what its kind allows; see check_plan.
void check_tensor(const Plan& plan, const PlanTensor& tensor, const Container& container);

}  // namespace tl
