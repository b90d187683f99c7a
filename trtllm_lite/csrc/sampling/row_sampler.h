// Makes tokens, beams and log probabilities of a step's logits on the host, and copies the logits that are asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "executor/prompt_rows.h"
#include "executor/step.h"
#include "grammar/grammar.h"
#include "sampling/guided_text.h"
#include "sampling/sampler.h"

namespace tl {

class Adapter;

// The sampling parameters and wishes of a request in a slot.
struct RequestParams : SlotParams {
  SamplingParams sampling;
  std::uint32_t sequence_index =
      0;  // tells apart the sequences of one prompt that share a seed, so that each draws its own numbers
  std::optional<BeamSearchParams> beams;   // search instead of sampling; not with generation_logits
  std::shared_ptr<const Grammar> grammar;  // the grammar of the generated text; not with beams
  std::shared_ptr<const Adapter> adapter;  // changes the model; made for the engine that the loop runs
  std::shared_ptr<const PromptRows> rows;  // embeddings in place of tokens of the prompt; null if there are none
  bool context_logits = false;             // needs an engine built with gather_context_logits, as prompt_logprobs do
  bool generation_logits = false;
};

// float32[num_rows, vocab_size]
struct LogitRows {
  std::unique_ptr<float[]> values;
  std::size_t num_rows = 0;
};

// The results of a row beside its token; empty unless the request asks for them.
struct RequestOutputs : RowOutputs {
  explicit RequestOutputs(std::size_t num_logits) : vocab_size(num_logits) {}

  std::size_t vocab_size;
  std::vector<RowLogprobs> logprobs;         // one for each sampled token
  std::vector<float> generation_logits;      // [sampled tokens, vocab_size], what they were sampled from
  int first_position = 0;                    // the first of the prompt positions below
  LogitRows context_logits;                  // rows for the wanted prompt positions
  std::vector<RowLogprobs> prompt_logprobs;  // for the prompt token after each of these positions
  std::vector<BeamHypothesis> hypotheses;    // results of a beam search at its end, best first
};

// The row's outputs beside its tokens, which the first call allocates.
RequestOutputs& outputs_of(RowResult& result, std::size_t vocab_size);

// The rows of logits that belong to a row of the step: first those of prompt positions, then those from which tokens
// are sampled (of the last known token, which may be the last of the prompt, and of the drafts).
struct RowLogits {
  std::int64_t first = 0;  // index of the first row in the step's logits
  int num_rows = 0;
  int num_positions = 0;   // prompt positions whose outputs are wanted
  int first_position = 0;  // the first of these positions

  // Which of the row's tokens the row of logits number `index` belongs to.
  int token_of(int index, const StepRow& row) const {
    return index < num_positions ? first_position + index - row.past_len : row.num_tokens - (num_rows - index);
  }
};

// The masks of a row that a grammar guides, as GuidedText::fill_masks leaves them.
struct RowMasks {
  std::span<const std::uint32_t> words;
  bool is_late = false;    // the masks were not ready in time
  std::string error = {};  // the grammar cannot be followed any further
};

// Samples rows for the requests that it holds by slot, under their grammars. One thread may use it, but several may
// call finish_row.
class RowSampler {
 public:
  RowSampler(int num_slots, int vocab_size);

  int num_slots() const { return sampler_.num_slots(); }
  std::size_t vocab_size() const { return vocab_size_; }
  const RequestParams& params(int slot) const { return *slots_[static_cast<std::size_t>(slot)].params; }

  // Implements StepExecutor::set_slot. Throws LimitError for parameters that are out of range.
  void set_slot(int slot, std::shared_ptr<const SlotParams> params, std::span<const std::int32_t> tokens,
                int num_prompt);
  // The sampler's state of the sequence in a slot; null if the slot holds no sequence, or a beam search.
  const SlotState* sequence(int slot) const { return sampler_.slot(slot); }
  // The text of the sequence in a slot; null without a grammar.
  const std::shared_ptr<GuidedText>& text(int slot) const { return slots_[static_cast<std::size_t>(slot)].text; }
  // The newest token of the slot's sequence. If its last row could not be sampled, this is an older token, which nobody
  // reads, because the request has ended.
  std::int32_t last_token(int slot) const { return sampler_.slot(slot)->history().back(); }

  // The rows of logits that a row of the step needs; `first` is left to the caller.
  RowLogits logits_of(const StepRow& row) const;

  // Fills in the result of row `index`; `at` has all rows' places in `logits`. Rows of distinct requests may be
  // finished by concurrent threads, each with a workspace of its own. Too little memory for what the request asked
  // for is an error in the result, never an exception. `masks`: the masks of a guided row; null if this call has to
  // make them.
  void finish_row(const StepBatch& batch, std::span<const RowLogits> at, std::size_t index,
                  std::span<const float> logits, const RowMasks* masks, SamplerWorkspace& workspace, RowResult& result);
  // The next two methods are for a caller that never holds all logits at once: open_prompt makes room for the outputs
  // of the row's prompt positions, describe_position fills in those of number `index` from its logits [vocab_size] and
  // returns what is wrong with them (concurrent threads may do so for distinct positions), and finish_row comes last,
  // with no prompt positions in its `at`.
  void open_prompt(const StepRow& row, const RowLogits& at, RowResult& result);
  [[nodiscard]] std::string describe_position(const StepRow& row, const RowLogits& at, int index,
                                              std::span<const float> logits, SamplerWorkspace& workspace,
                                              RowResult& result);

 private:
  struct Slot {
    std::shared_ptr<const RequestParams> params;
    int num_prompt = 0;
    std::shared_ptr<GuidedText> text;  // the tokens generated so far; null without a grammar
  };

  std::span<const float> rows_of(const RowLogits& at, std::span<const float> logits) const;
  std::span<const std::uint32_t> make_masks(const StepBatch& batch, const StepRow& row,
                                            SamplerWorkspace& workspace) const;
  void sample_tokens(int slot, std::span<const float> logits, std::span<const std::int32_t> drafts,
                     std::span<const std::uint32_t> masks, SamplerWorkspace& workspace, RowResult& result);
  void advance_search(BeamSearch& search, std::span<const RowLogits> beams, std::span<const float> logits,
                      SamplerWorkspace& workspace, RowResult& result);
  void describe_prompt(const StepRow& row, const RowLogits& at, std::span<const float> logits,
                       SamplerWorkspace& workspace, RowResult& result);
  void sample(const StepBatch& batch, const StepRow& row, std::span<const RowLogits> at, std::span<const float> logits,
              std::span<const std::uint32_t> masks, SamplerWorkspace& workspace, RowResult& result);

  const std::size_t vocab_size_;
  Sampler sampler_;
  std::vector<Slot> slots_;
};

}  // namespace tl
