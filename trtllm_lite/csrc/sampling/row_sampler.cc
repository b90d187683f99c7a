#include "sampling/row_sampler.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "errors.h"

namespace tl {
namespace {

// The first prompt position whose outputs the request wants of this row; beyond the row if it wants none.
int first_output_position(const StepRow& row, const RequestParams& params) {
  if (!params.context_logits && !params.sampling.prompt_logprobs) return row.past_len + row.num_tokens;
  return std::max(row.past_len, row.outputs_from);
}

constexpr const char* kOutOfMemory =
    "expected enough host memory for the logits or log probabilities of this request, found too little: ask for "
    "context logits or prompt_logprobs of a shorter prompt, or run fewer requests at once";

// Frees the memory of the result, which other requests may need.
void run_out_of_memory(RowResult& result) {
  result.outputs.reset();
  result.error = kOutOfMemory;
}

}  // namespace

RequestOutputs& outputs_of(RowResult& result, std::size_t vocab_size) {
  if (!result.outputs) result.outputs = std::make_unique<RequestOutputs>(vocab_size);
  return static_cast<RequestOutputs&>(*result.outputs);
}

RowSampler::RowSampler(int num_slots, int vocab_size)
    : vocab_size_(static_cast<std::size_t>(vocab_size)),
      sampler_(num_slots, vocab_size),
      slots_(static_cast<std::size_t>(num_slots)) {}

void RowSampler::set_slot(int slot, std::shared_ptr<const SlotParams> params, std::span<const std::int32_t> tokens,
                          int num_prompt) {
  auto own = std::dynamic_pointer_cast<const RequestParams>(std::move(params));
  if (!own) throw std::invalid_argument("this executor needs RequestParams");
  const auto prompt = static_cast<std::size_t>(num_prompt);
  // Embeddings of the prompt are no tokens that penalties could count.
  std::vector<std::int32_t> known(tokens.begin(), tokens.begin() + num_prompt);
  if (own->rows) {
    for (auto at = own->rows->positions.rbegin(); at != own->rows->positions.rend(); ++at)
      known.erase(known.begin() + *at);
  }
  const std::span<const std::int32_t> given = known;
  const std::string error =
      own->beams ? sampler_.set_search(slot, *own->beams, own->sampling, given)
                 : sampler_.set_slot(slot, own->sampling, given, tokens.subspan(prompt), own->sequence_index);
  if (!error.empty()) throw LimitError(error);
  std::shared_ptr<GuidedText> text;
  if (own->grammar) {
    text = std::make_shared<GuidedText>(own->grammar->start());
    text->add_drawn(tokens.subspan(prompt));
  }
  slots_[static_cast<std::size_t>(slot)] = {std::move(own), num_prompt, std::move(text)};
}

RowLogits RowSampler::logits_of(const StepRow& row) const {
  const Slot& slot = slots_[static_cast<std::size_t>(row.request_slot)];
  const int end = row.past_len + row.num_tokens - row.num_drafts;
  RowLogits logits{.first_position = first_output_position(row, *slot.params)};
  logits.num_positions = std::max(std::min(end, slot.num_prompt) - logits.first_position, 0);
  const bool has_last = logits.num_positions > 0 && logits.first_position + logits.num_positions == end;
  logits.num_rows = logits.num_positions + row.num_drafts + (row.sample && !has_last ? 1 : 0);
  return logits;
}

std::span<const float> RowSampler::rows_of(const RowLogits& at, std::span<const float> logits) const {
  return logits.subspan(static_cast<std::size_t>(at.first) * vocab_size_,
                        static_cast<std::size_t>(at.num_rows) * vocab_size_);
}

void RowSampler::finish_row(const StepBatch& batch, std::span<const RowLogits> at, std::size_t index,
                            std::span<const float> logits, const RowMasks* masks, SamplerWorkspace& workspace,
                            RowResult& result) {
  const StepRow& row = batch.rows[index];
  const bool is_later_beam = index > 0 && batch.rows[index - 1].request_slot == row.request_slot;
  if (is_later_beam) return;  // the search takes the logits of all beams with those of the first
  describe_prompt(row, at[index], logits, workspace, result);
  if (!row.sample || !result.error.empty()) return;
  if (masks != nullptr) {
    result.is_late = masks->is_late;
    result.error = masks->error;
    if (result.is_late || !result.error.empty()) return;
  }
  try {
    const auto words = masks != nullptr ? masks->words : make_masks(batch, row, workspace);
    sample(batch, row, at.subspan(index), logits, words, workspace, result);
  } catch (const std::bad_alloc&) {
    run_out_of_memory(result);
  } catch (const GrammarError& error) {
    result.error = error.what();
  }
}

void RowSampler::sample(const StepBatch& batch, const StepRow& row, std::span<const RowLogits> at,
                        std::span<const float> logits, std::span<const std::uint32_t> masks,
                        SamplerWorkspace& workspace, RowResult& result) {
  if (BeamSearch* search = sampler_.search(row.request_slot)) {
    advance_search(*search, at.first(static_cast<std::size_t>(search->num_live())), logits, workspace, result);
  } else {
    const auto num_masks = static_cast<std::size_t>(1 + row.num_drafts);
    sample_tokens(row.slot, rows_of(at.front(), logits).last(num_masks * vocab_size_), batch.drafts_of(row), masks,
                  workspace, result);
  }
}

// The masks of the row's text; empty without a grammar. Throws GrammarError.
std::span<const std::uint32_t> RowSampler::make_masks(const StepBatch& batch, const StepRow& row,
                                                      SamplerWorkspace& workspace) const {
  GuidedText* const guided = text(row.request_slot).get();
  if (guided == nullptr) return {};
  const std::size_t num_words = mask_words(vocab_size_);
  workspace.mask.resize(static_cast<std::size_t>(1 + row.num_drafts) * num_words);
  guided->fill_masks(batch.drafts_of(row), num_words, workspace.mask);
  return workspace.mask;
}

// In the place of each draft, a token is sampled as without drafts, and the draft is compared with it: drafts never
// change the tokens. A grammar's state never contains a rejected draft.
void RowSampler::sample_tokens(int slot, std::span<const float> logits, std::span<const std::int32_t> drafts,
                               std::span<const std::uint32_t> masks, SamplerWorkspace& workspace, RowResult& result) {
  SampledToken sampled;
  GuidedText* const guided = text(slot).get();
  const std::size_t num_words = guided == nullptr ? 0 : mask_words(vocab_size_);
  for (std::size_t i = 0; i <= drafts.size(); ++i) {
    const std::span<const float> row = logits.subspan(i * vocab_size_, vocab_size_);
    sampler_.sample_row(slot, row, workspace, sampled, masks.subspan(i * num_words, num_words));
    if (!sampled.error.empty()) {
      result.error = std::move(sampled.error);
      return;
    }
    result.tokens.push_back(sampled.token);
    if (guided != nullptr) guided->add_drawn(std::span(&sampled.token, 1));
    if (sampled.has_logprobs) outputs_of(result, vocab_size_).logprobs.push_back(std::move(sampled.logprobs));
    if (params(slot).generation_logits) {
      std::vector<float>& kept = outputs_of(result, vocab_size_).generation_logits;
      kept.insert(kept.end(), row.begin(), row.end());
    }
    if (i < drafts.size() && drafts[i] != sampled.token) return;
  }
}

void RowSampler::advance_search(BeamSearch& search, std::span<const RowLogits> beams, std::span<const float> logits,
                                SamplerWorkspace& workspace, RowResult& result) {
  std::vector<std::span<const float>> rows;
  for (const RowLogits& at : beams) rows.push_back(rows_of(at, logits).last(vocab_size_));
  result.error = search.step(rows, workspace);
  if (!result.error.empty()) return;
  result.moves.assign(search.moves().begin(), search.moves().end());
  if (search.done()) outputs_of(result, vocab_size_).hypotheses = search.hypotheses();
}

void RowSampler::describe_prompt(const StepRow& row, const RowLogits& at, std::span<const float> logits,
                                 SamplerWorkspace& workspace, RowResult& result) {
  if (at.num_positions > 0) open_prompt(row, at, result);
  for (int i = 0; i < at.num_positions && result.error.empty(); ++i) {
    const auto begin = static_cast<std::size_t>(at.first + i) * vocab_size_;
    result.error = describe_position(row, at, i, logits.subspan(begin, vocab_size_), workspace, result);
  }
}

void RowSampler::open_prompt(const StepRow& row, const RowLogits& at, RowResult& result) {
  const Slot& slot = slots_[static_cast<std::size_t>(row.request_slot)];
  const auto num_positions = static_cast<std::size_t>(at.num_positions);
  try {
    RequestOutputs& outputs = outputs_of(result, vocab_size_);
    outputs.first_position = at.first_position;
    if (slot.params->context_logits) {
      outputs.context_logits = {std::make_unique_for_overwrite<float[]>(num_positions * vocab_size_), num_positions};
    }
    // The last position of a prompt has no prompt token after it to describe.
    const int num_followed = std::min(at.num_positions, slot.num_prompt - 1 - at.first_position);
    if (slot.params->sampling.prompt_logprobs) outputs.prompt_logprobs.resize(static_cast<std::size_t>(num_followed));
  } catch (const std::bad_alloc&) {
    run_out_of_memory(result);
  }
}

std::string RowSampler::describe_position(const StepRow& row, const RowLogits& at, int index,
                                          std::span<const float> logits, SamplerWorkspace& workspace,
                                          RowResult& result) {
  const auto place = static_cast<std::size_t>(index);
  RequestOutputs& outputs = outputs_of(result, vocab_size_);
  if (outputs.context_logits.values) {
    std::ranges::copy(logits, outputs.context_logits.values.get() + place * vocab_size_);
  }
  if (place >= outputs.prompt_logprobs.size()) return {};
  const std::span<const TokenId> prompt = sampler_.prompt(row.request_slot);
  const SamplingParams& sampling = slots_[static_cast<std::size_t>(row.request_slot)].params->sampling;
  try {
    return sampler_.prompt_logprobs(logits, prompt.subspan(static_cast<std::size_t>(at.first_position + index) + 1, 1),
                                    *sampling.prompt_logprobs, workspace,
                                    std::span(outputs.prompt_logprobs).subspan(place, 1));
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}

}  // namespace tl
