// Which method guesses tokens ahead for the requests of an event loop.
#pragma once

#include <functional>
#include <memory>
#include <variant>

#include "batching/drafter.h"
#include "batching/request.h"
#include "speculation/ngram_drafter.h"
#include "speculation/suffix_drafter.h"
#include "speculation/synthetic_drafter.h"

namespace tl {

using Drafting = std::variant<NgramSizes, SuffixOptions, SyntheticOptions>;

// Makes the drafter of each request; what they share lives as long as the function. Throws ArgumentError for options
// out of range.
std::function<std::unique_ptr<Drafter>(const Request&)> drafters(const Drafting& drafting);

}  // namespace tl
