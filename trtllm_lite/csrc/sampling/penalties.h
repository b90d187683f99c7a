// Repetition, presence and frequency penalties, by counts that a slot keeps as its tokens come.
#pragma once

#include <span>
#include <vector>

#include "sampling/sampling_params.h"

namespace tl {

// Counts the tokens of a sequence. Memory and time grow with the number of distinct tokens, never with the vocabulary.
// The counts are a sorted array, because no choice of tokens can slow that down as colliding keys slow a hash table.
class TokenCounts {
 public:
  struct Entry {
    TokenId token;
    int num_generated;  // 0 for a token of the prompt only
  };

  explicit TokenCounts(std::span<const TokenId> prompt);
  void add_generated(TokenId token);
  std::span<const Entry> entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;  // ascending by token
};

// Whether the parameters make any penalty change a logit.
bool has_penalties(const SamplingParams& params);

// Repetition: the logit of every distinct token of prompt and output is divided by the penalty if positive and
// multiplied if negative (Keskar et al., "CTRL", section 4.1, in transformers' form for negative logits). Presence and
// frequency: logit -= presence + frequency * count for generated tokens, as in OpenAI's API reference. In this order.
void apply_penalties(const SamplingParams& params, const TokenCounts& counts, std::span<float> logits);

}  // namespace tl
