// The sampler's state of one sequence: its parameters and its tokens. It depends on no other sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sampling/penalties.h"
#include "sampling/sampling_params.h"

namespace tl {

// The sampler's state of one sequence. A copy of it is a fork of the sequence; both share the parameters.
class SlotState {
 public:
  // `params` have no violations and the tokens lie inside the vocabulary. `generated`: tokens the sequence generated
  // earlier, in another slot or before a preemption; the draws go on from there. `sequence_index`: which of the n
  // sequences of its request this is.
  SlotState(SamplingParams params, std::span<const TokenId> prompt, std::span<const TokenId> generated = {},
            std::uint32_t sequence_index = 0);

  // Adds the token to the history and, if a penalty needs them, to the counts. Amortized O(1) but for the counts.
  void append(TokenId token);

  const SamplingParams& params() const { return *params_; }
  std::span<const TokenId> history() const { return history_; }  // prompt, then generated
  std::span<const TokenId> prompt() const { return history().first(prompt_len_); }
  int num_generated() const { return static_cast<int>(history_.size() - prompt_len_); }
  std::uint32_t sequence_index() const { return sequence_index_; }
  const TokenCounts* counts() const { return counts_ ? &*counts_ : nullptr; }  // null when no penalty is set
  bool suppresses_stops() const { return num_generated() < params_->min_tokens; }

 private:
  std::shared_ptr<const SamplingParams> params_;
  std::vector<TokenId> history_;
  std::size_t prompt_len_;
  std::uint32_t sequence_index_;
  std::optional<TokenCounts> counts_;
};

}  // namespace tl
