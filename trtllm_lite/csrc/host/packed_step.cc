#include "host/packed_step.h"

#include <algorithm>
#include <ranges>

#include "adapters/adapter.h"

namespace tl {

void PackedStep::pack(const StepBatch& batch, const RowSampler& rows, const BlockTables& blocks,
                      const KvGeometry& geometry) {
  token_ids_ = batch.token_ids;
  seq_lens_.clear();
  past_lens_.clear();
  logits_indices_.clear();
  row_logits_.clear();
  adapters_.clear();
  token_rows_.clear();
  for (const StepRow& row : batch.rows) pack_row(batch, row, rows);
  pack_tables(batch, blocks, geometry);
}

void PackedStep::pack_row(const StepBatch& batch, const StepRow& row, const RowSampler& rows) {
  seq_lens_.push_back(row.num_tokens);
  past_lens_.push_back(row.past_len);
  if (batch.token_ids[static_cast<std::size_t>(row.first_token)] == kLastSampled) {
    token_ids_[static_cast<std::size_t>(row.first_token)] = rows.last_token(row.slot);
  }
  RowLogits at = rows.logits_of(row);
  at.first = std::ssize(logits_indices_);
  for (int i = 0; i < at.num_rows; ++i) {
    logits_indices_.push_back(row.first_token + at.token_of(i, row));
  }
  row_logits_.push_back(at);
  if (const PromptRows* own = rows.params(row.request_slot).rows.get()) {
    const std::size_t end = own->first_from(row.past_len + row.num_tokens);
    for (std::size_t i = own->first_from(row.past_len); i < end; ++i) {
      token_rows_.push_back({row.first_token + own->positions[i] - row.past_len, own->row(i)});
    }
  }
  if (const Adapter* adapter = rows.params(row.request_slot).adapter.get()) {
    adapters_.resize(batch.token_ids.size());
    std::fill_n(adapters_.begin() + row.first_token, row.num_tokens, adapter->parts());
  }
}

void PackedStep::pack_tables(const StepBatch& batch, const BlockTables& blocks, const KvGeometry& geometry) {
  const auto num_blocks = [&](const StepRow& row) { return geometry.num_blocks_for(row.past_len + row.num_tokens); };
  const auto num_entries = [&](const StepRow& row, int group) {
    return geometry.kind(group).num_entries(row.past_len + row.num_tokens);
  };
  const int num_groups = geometry.num_groups();
  blocks_per_row_ = std::ranges::max(batch.rows | std::views::transform(num_blocks));
  block_tables_.assign(batch.rows.size() * static_cast<std::size_t>(num_groups * blocks_per_row_), 0);
  auto out = block_tables_.begin();
  for (const StepRow& row : batch.rows) {
    for (int group = 0; group < num_groups; ++group, out += blocks_per_row_) {
      std::copy_n(blocks.blocks(row.slot, group).begin(), num_entries(row, group), out);
    }
  }
}

StepRequest PackedStep::request() const {
  return {.token_ids = token_ids_,
          .seq_lens = seq_lens_,
          .past_lens = past_lens_,
          .block_tables = block_tables_,
          .blocks_per_row = blocks_per_row_,
          .logits_indices = logits_indices_,
          .adapters = adapters_,
          .token_rows = token_rows_,
          .received = {}};
}

}  // namespace tl
