#include "sampling/penalties.h"

#include <algorithm>

namespace tl {

TokenCounts::TokenCounts(std::span<const TokenId> prompt) {
  std::vector<TokenId> tokens(prompt.begin(), prompt.end());
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  entries_.reserve(tokens.size());
  for (TokenId token : tokens) entries_.push_back({token, 0});
}

void TokenCounts::add_generated(TokenId token) {
  auto it = std::lower_bound(entries_.begin(), entries_.end(), token,
                             [](const Entry& entry, TokenId wanted) { return entry.token < wanted; });
  if (it == entries_.end() || it->token != token) it = entries_.insert(it, {token, 0});
  ++it->num_generated;
}

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f;
}

void apply_penalties(const SamplingParams& params, const TokenCounts& counts, std::span<float> logits) {
  for (const auto& [token, num_generated] : counts.entries()) {
    float& logit = logits[token];
    logit = logit < 0.0f ? logit * params.repetition_penalty : logit / params.repetition_penalty;
    if (num_generated > 0) {
      logit -= params.presence_penalty + params.frequency_penalty * static_cast<float>(num_generated);
    }
  }
}

}  // namespace tl
