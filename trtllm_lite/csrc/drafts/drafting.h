// Chooses the method that proposes draft tokens for the requests of an event loop.
#pragma once

#include <memory>
#include <variant>

#include "drafts/drafter.h"
#include "drafts/ngram_drafter.h"
#include "drafts/suffix_drafter.h"
#include "drafts/synthetic_drafter.h"

namespace tl {

using Drafting = std::variant<NgramSizes, SuffixOptions, SyntheticOptions>;

// Throws ArgumentError for options out of range.
std::shared_ptr<Drafter> make_drafter(const Drafting& drafting);

}  // namespace tl
