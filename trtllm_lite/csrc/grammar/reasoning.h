// Grammars for answers of models that may think before they answer.
#pragma once

#include <memory>

#include "grammar/grammar.h"
#include "grammar/thought_tokens.h"

namespace tl::llguidance {

// The resulting grammar accepts a text of `grammar`, or thoughts followed by such a text; `grammar` and `tokens` have
// the same vocabulary. Until it is decided which, all tokens that fit either are allowed. (White space before
// thoughts is allowed only in a token that has part of their marker too.) Within thoughts all tokens are allowed except
// end tokens, and tokens that reach into an answer that the grammar forbids.
std::shared_ptr<const Grammar> behind_thoughts(std::shared_ptr<const Grammar> grammar,
                                               std::shared_ptr<const ThoughtTokens> tokens);

}  // namespace tl::llguidance
