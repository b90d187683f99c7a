// Checks that this build reads the versions of an engine.
#pragma once

#include "engine/json_reader.h"

namespace tl {

// Throws EngineError if this is not an engine, UnsupportedVersion if it is one of another version.
void check_format(const JsonView& metadata);
void check_plan_version(const std::string& found);

}  // namespace tl
