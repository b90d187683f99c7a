// Draws the next token of each running sequence from its row of logits: the CPU device's sampler.
//
// Order of operations on a row: logit processors (logit_processors.h), temperature, truncation (truncation.h), then a
// draw by inverse transform over the remaining tokens in order of id, with one Philox number per token (philox.h).
// temperature = 0 takes the largest processed logit instead.
//
// Isolation. A row is a function of its slot and its logits alone: nothing is shared between slots, and a row that
// cannot be sampled gives an error in its own result. Rows of distinct slots may be sampled by concurrent threads, each
// with its own workspace; set_slot, set_search and clear_slot of a slot must not overlap with sampling that slot.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "sampling/beam_search.h"
#include "sampling/logit_processors.h"
#include "sampling/logprobs.h"
#include "sampling/slot_state.h"
#include "sampling/workspace.h"

namespace tl {

// Reusable between steps; every call sets all fields.
struct SampledToken {
  std::string error;  // empty = a token was drawn; else what was wrong with this row, and nothing else changed
  TokenId token = -1;
  bool has_logprobs = false;
  RowLogprobs logprobs;  // meaningful if has_logprobs
};

// Draws one of the tokens that `mask` allows, without changing the slot. Sets `error` and `token` of `out`, and
// workspace.raw to the scan of the raw logits.
void choose_token(const SlotState& slot, std::span<const float> logits, SamplerWorkspace& workspace, SampledToken& out,
                  TokenMask mask = {});

class Sampler {
 public:
  // num_slots and vocab_size must be at least 1.
  Sampler(int num_slots, int vocab_size);

  // Puts a sequence into a free or occupied slot; its next token is the one after `prompt` and `generated`. Returns
  // the request's violations, one per line; the slot is then unchanged. Returns an empty text if there are none.
  [[nodiscard]] std::string set_slot(int slot, SamplingParams params, std::span<const TokenId> prompt,
                                     std::span<const TokenId> generated = {}, std::uint32_t sequence_index = 0);
  // Puts a beam search into a slot as set_slot does a sequence. A search takes the rows of all its beams at once, with
  // search().
  [[nodiscard]] std::string set_search(int slot, const BeamSearchParams& beams, SamplingParams params,
                                       std::span<const TokenId> prompt);
  void clear_slot(int slot);

  // Draws the slot's next token, one that `mask` allows (empty: all), from the model's logits [vocab_size], and
  // appends it to the slot. The logits are only read.
  void sample_row(int slot, std::span<const float> logits, SamplerWorkspace& workspace, SampledToken& out,
                  TokenMask mask = {});

  // Log-probabilities of prompt tokens: row i of `logits` [next_tokens.size(), vocab_size] is the model's output at a
  // prompt position, next_tokens[i] the prompt token that follows, and out[i] gets the log-probabilities there. Chunks
  // of a prompt may come one by one. Returns what is wrong with a row; empty = all of `out` is filled in.
  [[nodiscard]] std::string prompt_logprobs(std::span<const float> logits, std::span<const TokenId> next_tokens,
                                            int num_top, SamplerWorkspace& workspace, std::span<RowLogprobs> out) const;

  int vocab_size() const { return vocab_size_; }
  int num_slots() const { return static_cast<int>(slots_.size()); }
  // The sequence, or the search, in the slot; null if there is none.
  const SlotState* slot(int index) const { return std::get_if<SlotState>(&slots_[index]); }
  BeamSearch* search(int index) { return std::get_if<BeamSearch>(&slots_[index]); }
  // The prompt of the sequence or search in the slot, which is not free.
  std::span<const TokenId> prompt(int index) const;

 private:
  int vocab_size_;
  std::vector<std::variant<std::monostate, SlotState, BeamSearch>> slots_;
};

}  // namespace tl
