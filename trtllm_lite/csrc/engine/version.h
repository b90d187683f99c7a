// What this build reads. A change that older readers would misread raises the number.
#pragma once

#include "engine/json_reader.h"

namespace tl {

constexpr std::int64_t kFormatVersion = 1;  // the container: entries, alignment, checksums
constexpr std::int64_t kPlanVersion = 3;    // the plan: instructions and what operators mean

// Throws EngineError if this is not an engine, UnsupportedVersion if it is one of another version.
void check_format(const JsonView& metadata);
void check_plan_version(const std::string& found);

}  // namespace tl
