// Repetition, presence and frequency penalties, from counts that a slot keeps as its tokens come.
#pragma once

#include <span>
#include <vector>

#include "sampling/sampling_params.h"

namespace tl {

// Which tokens a sequence holds. Memory and time go with the distinct tokens seen, never with the vocabulary: a
// sorted array, so that no choice of tokens can degrade it the way colliding keys degrade a hash table.
class TokenCounts {
 public:
  struct Entry {
    TokenId token;
    int num_generated;  // 0: in the prompt only
  };

  explicit TokenCounts(std::span<const TokenId> prompt);
  void add_generated(TokenId token);
  std::span<const Entry> entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;  // ascending by token
};

// Whether the parameters make any penalty change a logit.
bool has_penalties(const SamplingParams& params);

// Repetition: the logit of every token of the prompt or the output, once, is divided by the penalty if positive and
// multiplied if negative (Keskar et al., "CTRL", section 4.1, in transformers' form for negative logits). Presence and
// frequency: logit -= presence + frequency * count for generated tokens, as in OpenAI's API reference. In this order.
void apply_penalties(const SamplingParams& params, const TokenCounts& counts, std::span<float> logits);

}  // namespace tl
