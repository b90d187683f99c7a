#include "cuda/step_packer.h"

#include <algorithm>

namespace tl::cuda {
namespace {

constexpr std::int32_t kNoSlot = -1;

bool has_one_token(const StepRow& row) { return row.num_tokens == 1; }

static_assert(kBlockTables + 1 == kNumStepInputs, "tables come last: nothing else lies where they lay");

}  // namespace

StepPacker::StepPacker(const CudaExecutor& executor, const HostSampling& host) : executor_(executor), host_(host) {}

StepShape StepPacker::plan(const StepBatch& batch, LogitsPlan& logits) const {
  const auto num_rows = static_cast<std::int64_t>(batch.rows.size());
  StepShape shape{.num_tokens = static_cast<std::int64_t>(batch.token_ids.size()), .num_seqs = num_rows};
  shape.num_decode_seqs = std::ranges::find_if_not(batch.rows, has_one_token) - batch.rows.begin();
  shape.decode_only = shape.num_decode_seqs == num_rows;
  logits.clear();
  logits.rows.resize(batch.rows.size());
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const StepRow& row = batch.rows[i];
    RowLogits& own = logits.rows[i];
    const bool on_host = host_.takes(row);
    own.num_rows = row.sample ? 1 : 0;
    if (on_host) own = host_.rows().logits_of(row);
    if (shape.decode_only) own.num_rows = 1;
    own.first = shape.num_logits;
    shape.num_logits += own.num_rows;
    if (on_host && own.num_rows > 0) logits.host_rows.push_back(i);
    logits.has_logprobs = logits.has_logprobs || (row.sample && host_.reports_logprobs(row));
  }
  if (shape.decode_only) {
    const std::int64_t padded = executor_.padded_rows(num_rows);
    shape.num_tokens = shape.num_seqs = shape.num_decode_seqs = shape.num_logits = padded;
  }
  return shape;
}

void StepPacker::pack(const StepBatch& batch, const StepShape& shape, const SlotTables& tables,
                      std::span<const RowLogits> row_logits, std::byte* out, WrittenInputs& written) {
  out_ = out;
  layout_ = InputLayout(executor_.extents(shape), executor_.table_columns());
  written.tables.place(layout_.offsets[kBlockTables], shape.num_seqs);
  written.decodes.place(shape.decode_only ? static_cast<std::size_t>(shape.num_seqs) : 0, shape.num_seqs);
  seq_ = token_ = logit_ = 0;
  ints(kCuSeqlens)[0] = 0;
  for (std::size_t i = 0; i < batch.rows.size(); ++i, ++seq_) {
    const StepRow& row = batch.rows[i];
    const std::uint64_t decode =
        shape.decode_only && continues(batch, row) ? static_cast<std::uint64_t>(row.slot) + 1 : 0;
    if (written.decodes.replace(seq_, decode)) {
      add_logits(row, row_logits[i]);
      add_tokens(batch, row);
    } else {
      advance(row);
    }
    if (!written.tables.replace(seq_, tables.version(row.slot))) continue;
    for (int group = 0; group < tables.num_groups(); ++group) add_table(group, tables.blocks(row.slot, group));
  }
  pad(shape, written);
}

// Whether the row continues a token that the device drew, and the device draws its next token.
bool StepPacker::continues(const StepBatch& batch, const StepRow& row) const {
  return row.sample && batch.token_ids[static_cast<std::size_t>(row.first_token)] == kLastSampled && !host_.takes(row);
}

// A decode row whose place in the step holds the same sequence: what changes from step to step.
void StepPacker::advance(const StepRow& row) {
  ints(kPositionIds)[token_++] = row.past_len;
  ints(kPastLens)[seq_] = row.past_len;
  ints(kSampleCounter)[logit_++] = host_.records().counter(row.slot, row.num_generated);
}

void StepPacker::add_tokens(const StepBatch& batch, const StepRow& row) {
  const auto first = static_cast<std::size_t>(row.first_token);
  const bool was_sampled = batch.token_ids[first] == kLastSampled;  // then it is the row's only token
  const bool on_device = was_sampled && !host_.takes(row);
  for (int i = 0; i < row.num_tokens; ++i, ++token_) {
    ints(kTokenIds)[token_] = batch.token_ids[first + static_cast<std::size_t>(i)];
    ints(kTokenSlots)[token_] = on_device ? row.slot : kNoSlot;
    ints(kPositionIds)[token_] = row.past_len + i;
  }
  if (was_sampled) ints(kTokenIds)[token_ - 1] = on_device ? 0 : host_.rows().last_token(row.slot);
  ints(kCuSeqlens)[seq_ + 1] = static_cast<std::int32_t>(token_);
  ints(kPastLens)[seq_] = row.past_len;
}

void StepPacker::add_table(int group, std::span<const std::int32_t> blocks) {
  const std::int64_t table = seq_ * executor_.num_cache_groups() + group;
  std::ranges::copy(blocks, ints(kBlockTables) + table * executor_.table_columns());
}

void StepPacker::add_logits(const StepRow& row, const RowLogits& logits) {
  for (int i = 0; i < logits.num_rows; ++i, ++logit_) {
    ints(kLogitsIndices)[logit_] = static_cast<std::int32_t>(token_) + logits.token_of(i, row);
    const bool draws = i + 1 == logits.num_rows && row.sample && !host_.takes(row);
    if (draws) {
      set_sampling(logit_, row.slot, host_.records().counter(row.slot, row.num_generated));
    } else {
      set_sampling(logit_, kNoSlot, kGreedy);
    }
  }
}

void StepPacker::set_sampling(std::int64_t row, std::int32_t slot, std::int32_t counter) {
  ints(kSampleSlots)[row] = slot;
  ints(kSampleCounter)[row] = counter;
}

void StepPacker::pad(const StepShape& shape, WrittenInputs& written) {
  for (; seq_ < shape.num_seqs; ++seq_, ++token_, ++logit_) {
    written.decodes.replace(seq_, 0);
    ints(kTokenIds)[token_] = 0;
    ints(kTokenSlots)[token_] = kNoSlot;
    ints(kPositionIds)[token_] = 0;
    ints(kCuSeqlens)[seq_ + 1] = static_cast<std::int32_t>(token_ + 1);
    ints(kPastLens)[seq_] = 0;
    const std::int32_t spare = executor_.spare_block();
    written.tables.replace(seq_, 0);
    for (int group = 0; group < executor_.num_cache_groups(); ++group) add_table(group, {&spare, 1});
    ints(kLogitsIndices)[logit_] = static_cast<std::int32_t>(token_);
    set_sampling(logit_, kNoSlot, kGreedy);
  }
}

}  // namespace tl::cuda
