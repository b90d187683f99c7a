// Checks the places of a plan's tensors.
#pragma once

#include "engine/checks/cache_check.h"
#include "engine/container.h"
#include "engine/records.h"

namespace tl {

// Throws EngineError unless the dtype, shape and offset of every tensor are as its kind and the target require, and
// names are unique where they must be; see check_plan. Caches are what `kept` says of them.
void check_tensors(const Plan& plan, const Manifest& manifest, const Container& container, const KeptCaches& kept);

}  // namespace tl
