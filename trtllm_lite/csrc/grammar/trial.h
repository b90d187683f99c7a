// The trial of a grammar before it is used in the process that serves requests.
#pragma once

#include <cstdint>

#include "grammar/grammar.h"

namespace tl::llguidance {

// Writes a text of up to `num_tokens` random tokens below `vocab_size`, with masks and forced tokens as in a step, and
// rolls some back now and then. Ends early if only an end token may come, or if the text reaches one of the library's
// limits, which is no fault of the grammar.
void write_at_random(const Grammar& grammar, std::uint32_t vocab_size, int num_tokens);

}  // namespace tl::llguidance
