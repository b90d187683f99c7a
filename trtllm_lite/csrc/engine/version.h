// Checks that this build can read the version of an engine.
#pragma once

#include "engine/json_reader.h"

namespace tl {

// Throws EngineError if this is not an engine, UnsupportedVersion if its version is not supported.
void check_format(const JsonView& metadata);
void check_plan_version(const std::string& found);

}  // namespace tl
