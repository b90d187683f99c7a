// Checks the places of a plan's tensors.
#pragma once

#include "engine/container.h"
#include "engine/records.h"

namespace tl {

// Throws EngineError unless the dtype, shape and offset of every tensor are as its kind and the target require, and
// names are unique where they must be; see check_plan.
void check_tensors(const Plan& plan, const Manifest& manifest, const Container& container);

// What the manifest says of the state that the tensor `name` is, which has the operand's name and the layer's number;
// null if it is no state.
const Cache* state_of(const KvCache& cache, std::string_view name);

}  // namespace tl
