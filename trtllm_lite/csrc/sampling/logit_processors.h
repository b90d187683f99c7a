// Applies a request's edits to its logits before a token is drawn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/slot_state.h"

namespace tl {

using TokenMask = std::span<const std::uint32_t>;

// Applies, in transformers' order (GenerationMixin._get_logits_processor): logit_bias (SequenceBiasLogitsProcessor),
// repetition penalty, presence and frequency penalties, bad_words (NoBadWordsLogitsProcessor), min_tokens
// (MinNewTokensLengthLogitsProcessor, over end and stop tokens), allowed_token_ids (PrefixConstrainedLogitsProcessor),
// and a grammar's `mask` (grammar/grammar.h; empty for none).
// Returns `logits` itself when the slot changes nothing in this step, else `out` (resized to the row). Reads and
// writes nothing of other slots. The row must have the vocabulary that the slot's tokens were checked against.
std::span<const float> process_logits(const SlotState& slot, std::span<const float> logits, std::vector<float>& out,
                                      TokenMask mask = {});

}  // namespace tl
