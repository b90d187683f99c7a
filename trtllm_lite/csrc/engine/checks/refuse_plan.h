// The error of every check of a plan.
#pragma once

#include <string>

#include "errors.h"

namespace tl {

// Throws EngineError about a part of the plan, such as "outputs.logits".
[[noreturn]] inline void refuse_plan(const std::string& where, const std::string& message) {
  throw EngineError("plan." + where + ": " + message);
}

}  // namespace tl
