// What the sampling kernel knows of a sequence: a record for each slot. The host writes it when a sequence takes the
// slot; the kernel adds the tokens that it draws. Plain C++, which the runtime includes, too.
#pragma once

#include "sample/numbers.cuh"

namespace tl {

constexpr int kMaxTopLogprobs = 20;
constexpr int kGreedy = -1;    // in place of a sample_counter: take the largest logit, without reading the record
constexpr int kNoSlot = -1;    // the slot of a row that nothing is drawn from
constexpr int kDraftRow = -2;  // in place of a slot: the row continues the one before by a draft token
constexpr int kNoDraft = -1;   // no row follows that continues this one by a draft token
constexpr int kNoMask = -1;    // every token may be drawn from the row

// A token whose logit the sequence changes; a record has each token once.
struct LogitEdit {
  static constexpr int kNotSeen = -1;
  static constexpr unsigned kTokenMask = (1u << 24) - 1;
  static constexpr unsigned kBanned = 1u << 24;
  static constexpr unsigned kStop = 1u << 25;  // impossible before min_tokens

  unsigned token;     // and flags
  int num_generated;  // how often the sequence has generated it; 0: the prompt has it; kNotSeen: neither
  float bias;
  float raw;  // the model's logit, which the kernel keeps here while the row holds the edited one
};

// kSlotWords: words of a record without its edits. kOwnWords: how many of them are neither SamplingNumbers nor stops.
constexpr int kSlotWords = 24, kOwnWords = 7;
constexpr int kMaxStops = kSlotWords - kOwnWords - static_cast<int>(sizeof(SamplingNumbers) / 4);
static_assert(kMaxStops >= 4,
              "kSlotWords, and slot_words of schema.toml, leave too few words for the stops of a model");

// Followed by the edits. Zeroes are a sequence that decodes greedily and never ends.
struct SamplingSlot : SamplingNumbers {
  unsigned seed_low, seed_high, sequence_index;
  int num_edits;
  int min_tokens;
  int num_logprobs;   // 0: none; else one more than the number of most likely tokens, at most 1 + kMaxTopLogprobs
  int counts_tokens;  // not 0: drawn tokens are counted among the edits
  // Complements (~) of tokens that end the sequence, else 0. There may be more than fit: a step that was launched
  // before the host has seen such an end only computes the sequence's attention in vain.
  int stops[kMaxStops];
};
static_assert(sizeof(LogitEdit) == 16 && sizeof(SamplingSlot) == 4 * kSlotWords, "the host lays out records in words");

// Log probabilities that the model's own logits give. `rank` is 1 for the most likely token; `tokens` come in that
// order, -1 where there is none.
struct DrawnLogprobs {
  float logprob;
  int rank;
  int tokens[kMaxTopLogprobs];
  float logprobs[kMaxTopLogprobs];
};

}  // namespace tl
