// Chooses the method that proposes draft tokens for the requests of an event loop.
#pragma once

#include <memory>
#include <variant>

#include "batching/drafter.h"
#include "speculation/ngram_drafter.h"
#include "speculation/suffix_drafter.h"
#include "speculation/synthetic_drafter.h"

namespace tl {

using Drafting = std::variant<NgramSizes, SuffixOptions, SyntheticOptions>;

// Throws ArgumentError for options out of range.
std::shared_ptr<Drafter> make_drafter(const Drafting& drafting);

}  // namespace tl
