// Checks once, when an engine is loaded, that its plan is safe to execute, so that steps need no checks. Nothing can
// check what compiled GPU kernels do with the addresses they are given: run only GPU engines of people whose programs
// you would run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/container.h"
#include "engine/records.h"

namespace tl {

// An operator uses the values of step input `input` (an index into kStepInputs) as indices, so they must be below
// `bound`.
struct ValueBound {
  int input = 0;
  Dim bound;
  bool operator==(const ValueBound&) const = default;
};

// The index of `name` in kStepInputs; -1 if there is no such input.
int step_input_index(std::string_view name);

// The tensor that holds a result. Throws EngineError if the plan has no such output.
const PlanTensor& output_of(const Plan& plan, const std::string& name);

// Bytes of a stored tensor if every symbol has its upper bound; for a cache, bytes per block. Throws EngineError if
// this exceeds kMaxBytes or the plan does not bound a symbol.
std::int64_t max_bytes(const Plan& plan, const PlanTensor& tensor);
// The same for other bounds of symbols than the plan's.
std::int64_t max_bytes(const Extents& bounds, const PlanTensor& tensor);

// Throws EngineError unless all of the following hold. Symbols agree with the limits. Every tensor is where its kind
// says: arena and state tensors inside their memory, weights exactly on their entries of the container (an engine
// without weights has none), inputs and caches as the executor provides them. Instructions are of the target's kinds
// and valid: see call_flow.h and launch_check.h. Returns the bounds on the values of step inputs.
std::vector<ValueBound> check_plan(const Plan& plan, const Manifest& manifest, const Container& container);

}  // namespace tl
