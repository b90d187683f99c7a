#include "drafts/suffix_drafter.h"

#include <algorithm>

namespace tl {
namespace {

// The most tokens of a prompt, and of earlier outputs, that one call adds, so that no step waits long.
constexpr std::size_t kMostAtOnce = 1024;
constexpr int kMostOfOutputs = 64;
// The most tokens of a string that is searched for in an automaton that the request has not searched before.
constexpr std::size_t kLongestSearch = 64;

}  // namespace

SuffixDrafter::SuffixDrafter(const SuffixOptions& options, std::shared_ptr<OutputsBySalt> outputs,
                             const std::string& salt)
    : options_(options), all_(std::move(outputs)), salt_(salt), outputs_(all_ ? all_->of(salt) : nullptr) {}

void SuffixDrafter::draft(std::span<const std::int32_t> tokens, int most, TokenRun& out) {
  const std::size_t known = own_.num_tokens(), end = std::min(tokens.size(), known + kMostAtOnce);
  for (std::size_t i = known; i < end; ++i) own_.append(tokens[i]);
  if (outputs_) {
    outputs_->take_in(kMostOfOutputs);
    newer_.move(tokens.first(end), known, outputs_->newer());
    older_.move(tokens.first(end), known, outputs_->older());
  }
  if (end < tokens.size()) return;
  const SuffixAutomaton* longest = &own_;
  SuffixAutomaton::Match match = own_.repeated();
  for (const Cursor* cursor : {&newer_, &older_}) {
    if (cursor->match.length > match.length) longest = cursor->in.get(), match = cursor->match;
  }
  const double allowed = options_.max_spec_factor * match.length;
  copy(*longest, match, allowed < most ? static_cast<int>(allowed) : most, out);
}

void SuffixDrafter::copy(const SuffixAutomaton& from, SuffixAutomaton::Match match, int most, TokenRun& out) const {
  double probability = 1;
  for (int i = 0; i < most; ++i) {
    const auto next = from.follow(match);
    if (!next) return;
    probability *= next->share;
    if (probability < options_.min_token_prob) return;
    out.push_back(next->token);
  }
}

void SuffixDrafter::Cursor::move(std::span<const std::int32_t> tokens, std::size_t from,
                                 const std::shared_ptr<SuffixAutomaton>& now) {
  if (in != now) {
    in = now;
    match = {};
    from = tokens.size() - std::min(tokens.size(), kLongestSearch);
  }
  for (std::size_t i = from; i < tokens.size(); ++i) match = in->advance(match, tokens[i]);
}

void SuffixDrafter::end(std::span<const std::int32_t> generated) {
  if (all_) all_->add(salt_, generated);
}

}  // namespace tl
