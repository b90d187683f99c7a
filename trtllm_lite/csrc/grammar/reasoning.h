// Grammars that begin behind a reasoning prefix.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/token_texts.h"

namespace tl::llguidance {

// Of texts that think first: all tokens but end tokens are free up to the one in which the last text of `marker`, of
// which none is empty, comes to its end behind the others; `grammar` is that of the tokens behind. Names of special
// tokens count as text here.
std::shared_ptr<const Grammar> behind_marker(std::shared_ptr<const Grammar> grammar,
                                             std::span<const std::string> marker,
                                             std::shared_ptr<const TokenTexts> texts,
                                             std::vector<std::uint32_t> end_ids);

}  // namespace tl::llguidance
