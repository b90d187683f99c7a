#include "drafts/drafting.h"

#include <algorithm>
#include <string>

#include "drafts/sequence_drafter.h"
#include "errors.h"

namespace tl {
namespace {

void check(bool ok, const std::string& expected, const std::string& found) {
  if (!ok) throw ArgumentError("expected " + expected + ", found " + found);
}

SequenceDrafters::Make drafters_of(const NgramSizes& sizes) {
  (void)NgramDrafter(sizes);  // throws here what the drafter of every request would throw
  return [sizes](const Request&) { return std::make_unique<NgramDrafter>(sizes); };
}

SequenceDrafters::Make drafters_of(const SuffixOptions& options) {
  check(options.max_cached_requests == 0 || options.max_cached_requests >= 2,
        "suffix_decoding_max_cached_requests of 0 or at least 2", std::to_string(options.max_cached_requests));
  check(options.max_spec_factor > 0, "a suffix_decoding_max_spec_factor above 0",
        std::to_string(options.max_spec_factor));
  check(options.min_token_prob >= 0 && options.min_token_prob <= 1, "a suffix_decoding_min_token_prob in 0 .. 1",
        std::to_string(options.min_token_prob));
  std::shared_ptr<OutputsBySalt> outputs;
  if (options.max_cached_requests > 0) outputs = std::make_shared<OutputsBySalt>(options.max_cached_requests);
  return [options, outputs](const Request& request) {
    return std::make_unique<SuffixDrafter>(options, outputs, request.spec.cache_salt);
  };
}

SequenceDrafters::Make drafters_of(const SyntheticOptions& options) {
  const std::vector<double>& rates = options.acceptance_rates;
  const bool in_range = std::ranges::all_of(rates, [](double rate) { return rate >= 0 && rate <= 1; });
  check(in_range && std::ranges::is_sorted(rates, std::greater<>()),
        "synthetic_acceptance_rates in 0 .. 1, none above the previous one",
        "a rate out of range or above the previous one");
  const auto outputs = std::make_shared<KnownOutputs>();
  return [options, outputs](const Request& request) {
    return std::make_unique<SyntheticDrafter>(options, outputs, request);
  };
}

}  // namespace

std::shared_ptr<Drafter> make_drafter(const Drafting& drafting) {
  return std::make_shared<SequenceDrafters>(
      std::visit([](const auto& options) { return drafters_of(options); }, drafting));
}

}  // namespace tl
