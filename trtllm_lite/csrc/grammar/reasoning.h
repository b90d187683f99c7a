// Grammars of the answers of texts that may think first.
#pragma once

#include <memory>

#include "grammar/grammar.h"
#include "grammar/thought_tokens.h"

namespace tl::llguidance {

// A text is one of `grammar`, or thinks before it goes on as one; `grammar` and `tokens` are of one vocabulary.
// Until it is decided which, all that fits either may come, but white space before thoughts only in one token with some
// of their marker. In thoughts all tokens may come but end tokens, and those in which an answer begins that the grammar
// forbids.
std::shared_ptr<const Grammar> behind_thoughts(std::shared_ptr<const Grammar> grammar,
                                               std::shared_ptr<const ThoughtTokens> tokens);

}  // namespace tl::llguidance
