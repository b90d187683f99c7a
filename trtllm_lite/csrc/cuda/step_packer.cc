#include "cuda/step_packer.h"

#include <algorithm>

namespace tl::cuda {
namespace {

constexpr std::int32_t kNoSlot = -1;

// Of rows that draw nothing, or not on the device: the largest logit, kept by no slot.
const RequestParams& greedy() {
  static const RequestParams params = [] {
    RequestParams made;
    made.sampling.temperature = 0;
    return made;
  }();
  return params;
}

}  // namespace

StepPacker::StepPacker(const CudaExecutor& executor, const HostSampling& host)
    : executor_(executor), host_(host), tokens_per_block_(executor.engine().manifest().kv_cache.tokens_per_block) {}

StepShape StepPacker::plan(const StepBatch& batch, std::vector<RowLogits>& row_logits) const {
  const auto is_decode = [](const StepRow& row) { return row.num_tokens == 1; };
  const auto num_rows = static_cast<std::int64_t>(batch.rows.size());
  StepShape shape{.num_tokens = static_cast<std::int64_t>(batch.token_ids.size()), .num_seqs = num_rows};
  shape.num_decode_seqs = std::ranges::find_if_not(batch.rows, is_decode) - batch.rows.begin();
  shape.decode_only = shape.num_decode_seqs == num_rows;
  row_logits.clear();
  for (const StepRow& row : batch.rows) {
    RowLogits logits = host_.rows().logits_of(row);
    if (shape.decode_only) logits.num_rows = 1;
    logits.first = shape.num_logits;
    shape.num_logits += logits.num_rows;
    row_logits.push_back(logits);
  }
  if (shape.decode_only) {
    const std::int64_t padded = executor_.padded_rows(num_rows);
    shape.num_tokens = shape.num_seqs = shape.num_decode_seqs = shape.num_logits = padded;
  }
  return shape;
}

void StepPacker::pack(const StepBatch& batch, const StepShape& shape, const BlockTables& blocks,
                      std::span<const RowLogits> row_logits, std::byte* out) {
  out_ = out;
  layout_ = InputLayout(executor_.extents(shape), executor_.table_columns());
  seq_ = token_ = logit_ = 0;
  ints(kCudaCuSeqlens)[0] = 0;
  for (std::size_t i = 0; i < batch.rows.size(); ++i, ++seq_) {
    const StepRow& row = batch.rows[i];
    add_logits(row, row_logits[i]);
    add_tokens(batch, row);
    add_table(row, blocks[static_cast<std::size_t>(row.slot)]);
  }
  pad(shape);
}

void StepPacker::add_tokens(const StepBatch& batch, const StepRow& row) {
  const auto first = static_cast<std::size_t>(row.first_token);
  const bool was_sampled = batch.token_ids[first] == kLastSampled;  // then it is the row's only token
  const bool on_device = was_sampled && !host_.takes(row);
  for (int i = 0; i < row.num_tokens; ++i, ++token_) {
    ints(kCudaTokenIds)[token_] = batch.token_ids[first + static_cast<std::size_t>(i)];
    ints(kCudaTokenSlots)[token_] = on_device ? row.slot : kNoSlot;
    ints(kCudaPositionIds)[token_] = row.past_len + i;
  }
  if (was_sampled) ints(kCudaTokenIds)[token_ - 1] = on_device ? 0 : host_.rows().last_token(row.slot);
  ints(kCudaCuSeqlens)[seq_ + 1] = static_cast<std::int32_t>(token_);
  ints(kCudaPastLens)[seq_] = row.past_len;
}

void StepPacker::add_table(const StepRow& row, std::span<const std::int32_t> blocks) {
  const std::int64_t num_blocks = (row.past_len + row.num_tokens + tokens_per_block_ - 1) / tokens_per_block_;
  std::copy_n(blocks.begin(), num_blocks, ints(kCudaBlockTables) + seq_ * executor_.table_columns());
}

void StepPacker::add_logits(const StepRow& row, const RowLogits& logits) {
  for (int i = 0; i < logits.num_rows; ++i, ++logit_) {
    const int position = i < logits.num_positions ? logits.first_position + i - row.past_len : row.num_tokens - 1;
    ints(kCudaLogitsIndices)[logit_] = static_cast<std::int32_t>(token_) + position;
    const bool draws = i + 1 == logits.num_rows && row.sample && !host_.takes(row);
    set_sampling(logit_, draws ? host_.rows().params(row.slot) : greedy(), draws ? row.slot : kNoSlot,
                 row.num_generated);
  }
}

void StepPacker::set_sampling(std::int64_t row, const RequestParams& params, std::int32_t slot, int num_generated) {
  const SamplingParams& sampling = params.sampling;
  ints(kCudaSampleSlots)[row] = slot;
  floats(kCudaTemperature)[row] = sampling.temperature;
  ints(kCudaTopK)[row] = sampling.top_k;
  floats(kCudaTopP)[row] = sampling.top_p;
  floats(kCudaMinP)[row] = sampling.min_p;
  ints(kCudaSeedLow)[row] = static_cast<std::int32_t>(sampling.seed);
  ints(kCudaSeedHigh)[row] = static_cast<std::int32_t>(sampling.seed >> 32);
  ints(kCudaSampleCounter)[row] = num_generated;
  ints(kCudaSequenceIndex)[row] = static_cast<std::int32_t>(params.sequence_index);
}

void StepPacker::pad(const StepShape& shape) {
  for (; seq_ < shape.num_seqs; ++seq_, ++token_, ++logit_) {
    ints(kCudaTokenIds)[token_] = 0;
    ints(kCudaTokenSlots)[token_] = kNoSlot;
    ints(kCudaPositionIds)[token_] = 0;
    ints(kCudaCuSeqlens)[seq_ + 1] = static_cast<std::int32_t>(token_ + 1);
    ints(kCudaPastLens)[seq_] = 0;
    ints(kCudaBlockTables)[seq_ * executor_.table_columns()] = executor_.spare_block();
    ints(kCudaLogitsIndices)[logit_] = static_cast<std::int32_t>(token_);
    set_sampling(logit_, greedy(), kNoSlot, 0);
  }
}

}  // namespace tl::cuda
