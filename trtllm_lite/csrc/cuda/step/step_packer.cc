#include "cuda/step/step_packer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "engine/module.h"

namespace tl::cuda {
namespace {

// The number of masks that a row may have. In a decode-only step the numbers of masks are those of tokens, so that they
// depend on the rows' places alone.
std::int64_t num_masks_of(const StepRow& row, bool decode_only) {
  return decode_only ? row.num_tokens : 1 + row.num_drafts;
}

// Sorts the indices of `slots`, whose values are 0 to num_slots, by slot into `places`. Also returns the end of each
// slot's places, except for the last slot.
void sort_by_slot(std::span<const std::int32_t> slots, int num_slots, std::int32_t* places, std::int32_t* ends) {
  std::array<std::int32_t, kMaxLoras + 1> next{};
  for (const std::int32_t slot : slots) ++next[static_cast<std::size_t>(slot)];
  std::exclusive_scan(next.begin(), next.begin() + num_slots + 1, next.begin(), 0);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    places[next[static_cast<std::size_t>(slots[i])]++] = static_cast<std::int32_t>(i);
  }
  std::copy_n(next.begin(), num_slots, ends);
}

static_assert(kBlockTables + 1 == kNumStepInputs,
              "the block tables are the last inputs, so nothing else overwrites them");

}  // namespace

StepPacker::StepPacker(const CudaExecutor& executor, const HostSampling& host) : executor_(executor), host_(host) {}

StepShape StepPacker::plan(const StepBatch& batch, LogitsPlan& logits) const {
  StepShape shape{.num_tokens = static_cast<std::int64_t>(batch.token_ids.size())};
  shape.decode_only = shape.num_tokens <= executor_.max_decode_rows() &&
                      std::ranges::all_of(batch.rows, [this](const StepRow& row) { return fits_decode_step(row); });
  for (const StepRow& row : batch.rows) {
    const auto [first, end] = rows_of(row);
    shape.num_token_rows += static_cast<std::int64_t>(end - first);
  }
  if (shape.num_token_rows > 0) shape.decode_only = false;  // graphs of decode steps have no room for embeddings
  for (const StepRow& row : batch.rows) {
    const bool leads = shape.num_seqs == shape.num_decode_seqs;
    if (leads && is_short(row)) {
      ++shape.num_decode_seqs;
      shape.num_decode_tokens += row.num_tokens;
    }
    ++shape.num_seqs;
    shape.adapters = shape.adapters || host_.adapter_slot(row) != kNoAdapter;
  }
  logits.clear();
  logits.rows.resize(batch.rows.size());
  std::int64_t mask = 0;
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const StepRow& row = batch.rows[i];
    RowLogits& own = logits.rows[i];
    const bool on_host = host_.takes(row);
    own.num_rows = row.sample ? 1 + row.num_drafts : 0;
    if (on_host) own = host_.rows().logits_of(row);
    if (shape.decode_only) own.num_rows = row.num_tokens;
    own.first = shape.num_logits;
    shape.num_logits += own.num_rows;
    if (on_host && own.num_rows > 0) logits.host_rows.push_back(i);
    logits.has_logprobs = logits.has_logprobs || (row.sample && host_.reports_logprobs(row));
    if (row.sample && host_.guides(row)) logits.guided.push_back({i, mask});
    mask += num_masks_of(row, shape.decode_only);
  }
  if (shape.decode_only) {
    shape.num_tokens = executor_.padded_rows(shape.num_tokens);
    shape.num_seqs = shape.num_decode_seqs = shape.num_decode_tokens = shape.num_logits = shape.num_tokens;
  }
  return shape;
}

// Whether attention for decode rows takes the row: it has as many tokens as a row with drafts may have.
bool StepPacker::is_short(const StepRow& row) const {
  return row.num_tokens <= 1 + executor_.engine().manifest().limits.max_draft_len;
}

// Whether the row may be part of a decode-only step. That is so of a row which decodes, and of one with as few known
// tokens, such as the two that a draft model has after all its draft tokens were accepted. A draft head cannot take
// these: every token of such a step has logits, and the head would overwrite the features it has yet to read.
bool StepPacker::fits_decode_step(const StepRow& row) const {
  if (row.decodes()) return true;
  return is_short(row) && row.sample && !host_.takes(row) && !drafts(only_module(executor_.engine().manifest()));
}

void StepPacker::pack(const StepBatch& batch, const StepShape& shape, const SlotTables& tables,
                      std::span<const RowLogits> row_logits, std::byte* out, WrittenInputs& written) {
  out_ = out;
  layout_ = executor_.input_layout(executor_.extents(shape));
  written.tables.place(layout_.offsets[kBlockTables], shape.num_seqs);
  written.decodes.place(shape.decode_only ? static_cast<std::size_t>(shape.num_tokens) : 0, shape.num_tokens);
  seq_ = token_ = logit_ = mask_ = token_row_ = 0;
  ints(kCuSeqlens)[0] = 0;
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const StepRow& row = batch.rows[i];
    const std::int64_t seq = seq_, first_token = token_;
    const std::uint64_t decode = shape.decode_only && continues(batch, row) ? version_of(row) : 0;
    if (written.decodes.replace(first_token, decode)) {
      add_logits(batch, row, row_logits[i]);
      add_tokens(batch, row);
      for (std::int64_t token = first_token + 1; token < token_; ++token) written.decodes.replace(token, 0);
    } else {
      advance(row);
    }
    mask_ += num_masks_of(row, shape.decode_only);
    add_tables(seq, tables, row.slot, written);
  }
  pad(shape, written);
  if (shape.adapters) list_adapters(batch, shape, row_logits);
}

void StepPacker::vary_tokens(std::int64_t num_tokens) const {
  constexpr std::int64_t kStride = 7919;  // a prime
  const std::int64_t vocab_size = executor_.engine().manifest().model.vocab_size;
  for (std::int64_t i = 0; i < num_tokens; ++i) {
    ints(kTokenIds)[i] = static_cast<std::int32_t>(i * kStride % vocab_size);
  }
}

// Lists tokens and rows of logits by the slots of their adapters. A padding row has none.
void StepPacker::list_adapters(const StepBatch& batch, const StepShape& shape, std::span<const RowLogits> row_logits) {
  const std::int32_t none = executor_.num_loras();
  std::vector<std::int32_t>&tokens = adapter_tokens_, &logits = adapter_logits_;
  tokens.clear();
  logits.clear();
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const std::int32_t slot = host_.adapter_slot(batch.rows[i]), key = slot == kNoAdapter ? none : slot;
    tokens.insert(tokens.end(), static_cast<std::size_t>(batch.rows[i].num_tokens), key);
    logits.insert(logits.end(), static_cast<std::size_t>(row_logits[i].num_rows), key);
  }
  tokens.resize(static_cast<std::size_t>(shape.num_tokens), none);
  logits.resize(static_cast<std::size_t>(shape.num_logits), none);
  sort_by_slot(tokens, none, ints(kAdapterTokens), ints(kAdapterTokenEnds));
  sort_by_slot(logits, none, ints(kAdapterLogits), ints(kAdapterLogitEnds));
}

// Whether the row continues a token that the device drew, and the device also draws its next token.
bool StepPacker::continues(const StepBatch& batch, const StepRow& row) const {
  return row.sample && batch.token_ids[static_cast<std::size_t>(row.first_token)] == kLastSampled && !host_.takes(row);
}

// The version of what is written for a row that continues a token of the device, apart from what advance() writes;
// greater than 0.
std::uint64_t StepPacker::version_of(const StepRow& row) const {
  return 2 * (static_cast<std::uint64_t>(row.slot) + 1) + (host_.guides(row) ? 1 : 0);
}

// Updates a decode row of one token whose place among the tokens already holds the same sequence.
void StepPacker::advance(const StepRow& row) {
  ints(kPositionIds)[token_++] = row.past_len;
  ints(kSampleCounter)[logit_++] = host_.records().counter(row.slot, row.num_generated);
  end_sequence(row.past_len);
}

// Ends the sequence that the tokens since the one before belong to.
void StepPacker::end_sequence(std::int32_t past_len) {
  ints(kPastLens)[seq_++] = past_len;
  ints(kCuSeqlens)[seq_] = static_cast<std::int32_t>(token_);
}

// Adds the tokens of a row.
void StepPacker::add_tokens(const StepBatch& batch, const StepRow& row) {
  const auto first = static_cast<std::size_t>(row.first_token);
  const bool was_sampled = batch.token_ids[first] == kLastSampled;  // then it is the row's only token
  const bool on_device = was_sampled && !host_.takes(row);
  for (int i = 0; i < row.num_tokens; ++i) {
    ints(kTokenIds)[token_] = batch.token_ids[first + static_cast<std::size_t>(i)];
    ints(kTokenSlots)[token_] = on_device ? row.slot : kNoSlot;
    ints(kPositionIds)[token_++] = row.past_len + i;
  }
  if (was_sampled) ints(kTokenIds)[token_ - 1] = on_device ? 0 : host_.rows().last_token(row.slot);
  end_sequence(row.past_len);
  place_rows(row);
}

// The embeddings of the prompt that take the place of tokens of the row: the first, and the one after the last.
std::pair<std::size_t, std::size_t> StepPacker::rows_of(const StepRow& row) const {
  const PromptRows* rows = host_.rows().params(row.request_slot).rows.get();
  if (rows == nullptr) return {};
  return {rows->first_from(row.past_len), rows->first_from(row.past_len + row.num_tokens)};
}

// Copies the embeddings that take the place of tokens of the row that was added last, and lets these tokens name them.
void StepPacker::place_rows(const StepRow& row) {
  const auto [first, end] = rows_of(row);
  if (first == end) return;
  const PromptRows& rows = *host_.rows().params(row.request_slot).rows;
  const std::size_t bytes = rows.row_bytes;
  std::memcpy(out_ + layout_.offsets[kTokenRows] + static_cast<std::size_t>(token_row_) * bytes, rows.row(first),
              (end - first) * bytes);
  const std::int64_t first_token = token_ - row.num_tokens;
  for (std::size_t i = first; i < end; ++i) {
    ints(kTokenIds)[first_token + rows.positions[i] - row.past_len] = ~static_cast<std::int32_t>(token_row_++);
  }
}

// Writes the block tables of `slot` for a sequence.
void StepPacker::add_tables(std::int64_t seq, const SlotTables& tables, int slot, WrittenInputs& written) {
  if (!written.tables.replace(seq, tables.version(slot))) return;
  for (int group = 0; group < tables.num_groups(); ++group) add_table(seq, group, tables.blocks(slot, group));
}

void StepPacker::add_table(std::int64_t seq, int group, std::span<const std::int32_t> blocks) {
  const std::int64_t table = seq * executor_.num_cache_groups() + group;
  std::ranges::copy(blocks, ints(kBlockTables) + table * executor_.table_columns());
}

void StepPacker::add_logits(const StepBatch& batch, const StepRow& row, const RowLogits& logits) {
  const int first_drawn = row.sample && !host_.takes(row) ? logits.num_rows - 1 - row.num_drafts : logits.num_rows;
  for (int i = 0; i < logits.num_rows; ++i) {
    const int token = logits.token_of(i, row);
    ints(kLogitsIndices)[logit_] = static_cast<std::int32_t>(token_) + token;
    if (i < first_drawn) {
      set_sampling(kNoSlot, kGreedy, kNoDraft, kNoMask);
      continue;
    }
    const auto next = static_cast<std::size_t>(row.first_token + token + 1);
    const std::int32_t draft = i + 1 < logits.num_rows ? batch.token_ids[next] : kNoDraft;
    const std::int32_t slot = i == first_drawn ? row.slot : kDraftRow;
    const std::int32_t mask = host_.guides(row) ? static_cast<std::int32_t>(mask_) + i - first_drawn : kNoMask;
    set_sampling(slot, host_.records().counter(row.slot, row.num_generated), draft, mask);
  }
}

// Writes the sampling inputs of the next row of logits.
void StepPacker::set_sampling(std::int32_t slot, std::int32_t counter, std::int32_t draft, std::int32_t mask) {
  ints(kSampleSlots)[logit_] = slot;
  ints(kSampleCounter)[logit_] = counter;
  ints(kSampleDrafts)[logit_] = draft;
  ints(kSampleMasks)[logit_++] = mask;
}

// Adds padding tokens, in sequences of as many as a row with drafts has, and then sequences without tokens: if rows
// have several tokens, there are fewer sequences than tokens. Padding sequences lie in the spare block.
void StepPacker::pad(const StepShape& shape, WrittenInputs& written) {
  const Manifest& manifest = executor_.engine().manifest();
  const std::int64_t most =
      std::min<std::int64_t>(1 + manifest.limits.max_draft_len, manifest.kv_cache.tokens_per_block);
  while (token_ < shape.num_tokens) {
    written.decodes.replace(token_, 0);
    ints(kTokenIds)[token_] = 0;
    ints(kTokenSlots)[token_] = kNoSlot;
    ints(kPositionIds)[token_] = 0;
    ints(kLogitsIndices)[logit_] = static_cast<std::int32_t>(token_);
    set_sampling(kNoSlot, kGreedy, kNoDraft, kNoMask);
    ++token_;
    if (token_ < shape.num_tokens && token_ - ints(kCuSeqlens)[seq_] < most) continue;
    const std::int32_t spare = executor_.spare_block();
    written.tables.replace(seq_, 0);
    for (int group = 0; group < executor_.num_cache_groups(); ++group) add_table(seq_, group, {&spare, 1});
    end_sequence(0);
  }
  while (seq_ < shape.num_seqs) end_sequence(0);
}

}  // namespace tl::cuda
