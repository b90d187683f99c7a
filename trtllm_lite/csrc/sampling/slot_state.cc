#include "sampling/slot_state.h"

#include <utility>

namespace tl {

SlotState::SlotState(SamplingParams params, std::span<const TokenId> prompt, std::span<const TokenId> generated,
                     std::uint32_t sequence_index)
    : params_(std::make_shared<const SamplingParams>(std::move(params))),
      history_(prompt.begin(), prompt.end()),
      prompt_len_(prompt.size()),
      sequence_index_(sequence_index) {
  if (has_penalties(*params_)) counts_.emplace(prompt);
  for (TokenId token : generated) append(token);
}

void SlotState::append(TokenId token) {
  history_.push_back(token);
  if (counts_) counts_->add_generated(token);
}

}  // namespace tl
