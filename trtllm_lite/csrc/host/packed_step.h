// A step packed on the host in the form that executors take.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "caches/kv_geometry.h"
#include "executor/step.h"
#include "executor/step_memory.h"
#include "host/step_inputs.h"
#include "sampling/row_sampler.h"

namespace tl {

class PackedStep {
 public:
  // Packs a step that has rows. Tokens that the batch leaves to the sampler must have been sampled.
  void pack(const StepBatch& batch, const RowSampler& rows, const BlockTables& blocks, const KvGeometry& geometry);

  // The results below are valid until the next pack().
  StepRequest request() const;
  std::span<const RowLogits> row_logits() const { return row_logits_; }

 private:
  void pack_row(const StepBatch& batch, const StepRow& row, const RowSampler& rows);
  void pack_tables(const StepBatch& batch, const BlockTables& blocks, const KvGeometry& geometry);

  std::vector<std::int32_t> token_ids_, seq_lens_, past_lens_, block_tables_, logits_indices_;
  std::int64_t blocks_per_row_ = 1;
  std::vector<const LowRankPart*> adapters_;  // by token; empty if no token has one
  std::vector<TokenRow> token_rows_;
  std::vector<RowLogits> row_logits_;
};

}  // namespace tl
