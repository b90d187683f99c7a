// Checks where the tensors of a plan lie.
#pragma once

#include "engine/container.h"
#include "engine/records.h"

namespace tl {

// Throws EngineError unless the dtype, shape and offset of every tensor are what its kind and the target allow, and no
// two have a name that must be one tensor's; see check_plan.
void check_tensors(const Plan& plan, const Manifest& manifest, const Container& container);

}  // namespace tl
