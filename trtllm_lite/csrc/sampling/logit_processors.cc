#include "sampling/logit_processors.h"

#include <algorithm>
#include <limits>

namespace tl {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

// Whether the history ends in all of `word` but its last token, so that this token would complete it.
bool would_complete(std::span<const TokenId> history, std::span<const TokenId> word) {
  const auto prefix = word.first(word.size() - 1);
  return history.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), history.end() - prefix.size());
}

bool any_bad_word_near(const SlotState& slot) {
  const auto& words = slot.params().bad_words;
  return std::any_of(words.begin(), words.end(),
                     [&](const auto& word) { return would_complete(slot.history(), word); });
}

bool suppresses_any(const SlotState& slot) {
  const auto& params = slot.params();
  const bool has_stops = !params.stop_token_ids.empty() || (!params.ignore_eos && !params.end_ids.empty());
  return has_stops && slot.suppresses_stops();
}

void ban(std::span<const TokenId> tokens, std::span<float> logits) {
  for (TokenId token : tokens) logits[token] = kImpossible;
}

// The copy of the row that the processors edit. An impossible logit stays impossible under every processor, so
// masking first leaves the same row as masking last.
void copy_allowed(const SamplingParams& params, std::span<const float> logits, std::vector<float>& out) {
  if (!params.allowed_token_ids) {
    out.assign(logits.begin(), logits.end());
    return;
  }
  out.assign(logits.size(), kImpossible);
  for (TokenId token : *params.allowed_token_ids) out[token] = logits[token];
}

// Most words of a mask are all zeros or, where the grammar allows any text, all ones.
void ban_masked(TokenMask mask, std::span<float> logits) {
  constexpr std::size_t kBits = 32;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBits) {
    const std::uint32_t word = mask[begin / kBits];
    if (word == ~std::uint32_t{0}) continue;
    const auto tokens = logits.subspan(begin, std::min(kBits, logits.size() - begin));
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = (word >> i & 1) != 0 ? tokens[i] : kImpossible;
  }
}

}  // namespace

std::span<const float> process_logits(const SlotState& slot, std::span<const float> logits, std::vector<float>& out,
                                      TokenMask mask) {
  const auto& params = slot.params();
  const bool has_bad_words = any_bad_word_near(slot);
  const bool has_suppressed = suppresses_any(slot);
  if (params.logit_bias.empty() && slot.counts() == nullptr && !params.allowed_token_ids && !has_bad_words &&
      !has_suppressed && mask.empty()) {
    return logits;
  }
  copy_allowed(params, logits, out);
  if (!mask.empty()) ban_masked(mask, out);
  for (const auto& [token, bias] : params.logit_bias) out[token] += bias;
  if (slot.counts() != nullptr) apply_penalties(params, *slot.counts(), out);
  if (has_bad_words) {
    for (const auto& word : params.bad_words) {
      if (would_complete(slot.history(), word)) out[word.back()] = kImpossible;
    }
  }
  if (has_suppressed) ban(ending_tokens(params), out);
  return out;
}

}  // namespace tl
