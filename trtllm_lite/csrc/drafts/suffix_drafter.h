// Suffix decoding: proposes what followed the longest suffix of the text that occurred before (Oliaro et al.,
// "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", 2024).
#pragma once

#include <memory>
#include <span>
#include <string>

#include "drafts/earlier_outputs.h"
#include "drafts/sequence_drafter.h"
#include "drafts/suffix_automaton.h"

namespace tl {

// `max_cached_requests`: kept outputs of each cache_salt; 0, or at least 2. `max_spec_factor`: the most drafts for each
// token of the matching string. `min_token_prob`: the least estimated probability of the last draft.
struct SuffixOptions {
  int max_cached_requests = 10000;
  double max_spec_factor = 1;
  double min_token_prob = 0.1;
};

// Searches the request's own prompt and output, and `outputs`, which may be null. Drafters that share `outputs` must be
// used by one thread.
class SuffixDrafter : public SequenceDrafter {
 public:
  SuffixDrafter(const SuffixOptions& options, std::shared_ptr<OutputsBySalt> outputs, const std::string& salt);
  void draft(std::span<const std::int32_t> tokens, int most, TokenRun& out) override;
  void end(std::span<const std::int32_t> generated) override;

 private:
  // The longest string that ends the text and occurs in an automaton, to which other requests may add meanwhile.
  struct Cursor {
    std::shared_ptr<const SuffixAutomaton> in;
    SuffixAutomaton::Match match;

    void move(std::span<const std::int32_t> tokens, std::size_t from, const std::shared_ptr<SuffixAutomaton>& now);
  };
  void copy(const SuffixAutomaton& from, SuffixAutomaton::Match match, int most, TokenRun& out) const;

  const SuffixOptions options_;
  std::shared_ptr<OutputsBySalt> all_;
  const std::string salt_;
  std::shared_ptr<EarlierOutputs> outputs_;  // null: none are kept
  SuffixAutomaton own_;
  Cursor newer_, older_;
};

}  // namespace tl
