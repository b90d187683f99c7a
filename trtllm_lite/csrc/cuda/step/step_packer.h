// Writes a step as the device takes it: packed inputs, padding, and the places of each row's logits. A row of the batch
// is a sequence, whose new tokens are the row's: one or, with drafts, several. A decode-only step has as many sequences
// as tokens, because graphs know only one number of them; the last sequences are then without tokens.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "cuda/cuda_executor.h"
#include "cuda/step/host_sampling.h"
#include "cuda/step/slot_tables.h"
#include "cuda/step/token_masks.h"
#include "executor/step.h"

namespace tl::cuda {

// The rows of a step's logits by row of the batch.
struct LogitsPlan {
  std::vector<RowLogits> rows;         // by row of the batch
  std::vector<std::size_t> host_rows;  // rows of the batch whose logits are copied to the host
  std::vector<GuidedRow> guided;       // in order of their masks
  bool has_logprobs = false;           // whether a row that the device samples reports log probabilities

  void clear() {
    rows.clear();
    host_rows.clear();
    guided.clear();
    has_logprobs = false;
  }
};

class StepPacker {
 public:
  // Borrows the executor and `host`.
  StepPacker(const CudaExecutor& executor, const HostSampling& host);

  // Returns the padded shape of the step, and the rows of logits of each row of the batch. In a decode-only step every
  // token has a row of logits.
  StepShape plan(const StepBatch& batch, LogitsPlan& logits) const;
  // Writes the inputs of the planned step to `out`, which holds as many bytes as InputLayout has for its extents.
  // `written` describes `out`, and no other code may write there.
  void pack(const StepBatch& batch, const StepShape& shape, const SlotTables& tables,
            std::span<const RowLogits> row_logits, std::byte* out, WrittenInputs& written);
  // Lets the tokens of the step of padding alone that was packed last differ, so that a mixture's tokens have different
  // experts, as those of requests do.
  void vary_tokens(std::int64_t num_tokens) const;

 private:
  bool is_short(const StepRow& row) const;
  bool fits_decode_step(const StepRow& row) const;
  bool continues(const StepBatch& batch, const StepRow& row) const;
  std::uint64_t version_of(const StepRow& row) const;
  void advance(const StepRow& row);
  void end_sequence(std::int32_t past_len);
  void add_tokens(const StepBatch& batch, const StepRow& row);
  void add_tables(std::int64_t seq, const SlotTables& tables, int slot, WrittenInputs& written);
  std::pair<std::size_t, std::size_t> rows_of(const StepRow& row) const;
  void place_rows(const StepRow& row);
  void add_table(std::int64_t seq, int group, std::span<const std::int32_t> blocks);
  void add_logits(const StepBatch& batch, const StepRow& row, const RowLogits& logits);
  void pad(const StepShape& shape, WrittenInputs& written);
  void list_adapters(const StepBatch& batch, const StepShape& shape, std::span<const RowLogits> row_logits);
  std::int32_t* ints(StepInputIndex input) const {
    return reinterpret_cast<std::int32_t*>(out_ + layout_.offsets[input]);
  }
  void set_sampling(std::int32_t slot, std::int32_t counter, std::int32_t draft, std::int32_t mask);

  const CudaExecutor& executor_;
  const HostSampling& host_;
  std::byte* out_ = nullptr;
  InputLayout layout_;
  std::int64_t seq_ = 0, token_ = 0, logit_ = 0, mask_ = 0, token_row_ = 0;  // number written so far
  std::vector<std::int32_t> adapter_tokens_, adapter_logits_;  // adapter slots of the step's tokens and rows of logits
};

}  // namespace tl::cuda
