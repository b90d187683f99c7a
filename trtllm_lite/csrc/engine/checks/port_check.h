// Checks of what flows into an engine from another one, and out of it.
#pragma once

#include <map>
#include <string>

#include "engine/records.h"

namespace tl {

// What a pipeline stage other than the last computes for the next one: its outputs in the arena, by name.
std::map<std::string, int> sent_by(const Plan& plan);

// Returns whether the plan has the input token_rows.
bool takes_token_rows(const Plan& plan);

// Throws EngineError unless the manifest has one module.
void check_modules(const Manifest& manifest);

// Throws EngineError unless the plan has the inputs and outputs of the manifest's module, and no other inputs, and the
// module owns all cache groups.
void check_ports(const Plan& plan, const Manifest& manifest);

// Throws EngineError unless stages receive and send rows of tokens. The first stage receives nothing. The last sends
// nothing: it has logits and, on GPUs, draws tokens.
void check_links(const Plan& plan, const Manifest& manifest);

}  // namespace tl
