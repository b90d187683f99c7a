#include "sampling/slot_state.h"

#include <algorithm>
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

StopCause SlotState::stop_cause() const {
  if (num_generated() == 0) return StopCause::kNone;
  const auto contains = [token = history_.back()](const std::vector<TokenId>& tokens) {
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
  };
  if (num_generated() > params_->min_tokens) {
    if (!params_->ignore_eos && contains(params_->end_ids)) return StopCause::kEndId;
    if (contains(params_->stop_token_ids)) return StopCause::kStopToken;
  }
  return num_generated() >= params_->max_tokens ? StopCause::kMaxTokens : StopCause::kNone;
}

}  // namespace tl
