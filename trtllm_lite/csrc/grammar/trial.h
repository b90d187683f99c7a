// What a grammar is put through before it is used where others' requests run.
#pragma once

#include <cstdint>

#include "grammar/grammar.h"

namespace tl::llguidance {

// Writes a text of up to `num_tokens` random tokens below `vocab_size`, with masks and guesses as a step has them, and
// takes some back now and then. It ends early where only an end token may come, or where the text comes to one of the
// library's limits: that is the end of one text, and no fault of the grammar's.
void write_at_random(const Grammar& grammar, std::uint32_t vocab_size, int num_tokens);

}  // namespace tl::llguidance
