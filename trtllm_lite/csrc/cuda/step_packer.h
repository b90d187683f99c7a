// Writes a step in the form that the device takes: packed inputs, padding rows, and the places of each row's logits. A
// row that decodes becomes a sequence of one new token, and another for each draft that it brings: with the same
// blocks, and a longer past, in which attention finds what the ones before have put there. So does a row of two known
// tokens where all others decode.
#pragma once

#include <span>
#include <vector>

#include "batching/step.h"
#include "cuda/cuda_executor.h"
#include "cuda/host_sampling.h"
#include "cuda/slot_tables.h"
#include "cuda/token_masks.h"

namespace tl::cuda {

// The batch rows to which the rows of a step's logits belong.
struct LogitsPlan {
  std::vector<RowLogits> rows;         // by row of the batch
  std::vector<std::size_t> host_rows;  // of the batch: whose logits come to the host
  std::vector<GuidedRow> guided;       // in order of their masks
  bool has_logprobs = false;           // of rows that the device samples

  void clear() {
    rows.clear();
    host_rows.clear();
    guided.clear();
    has_logprobs = false;
  }
};

class StepPacker {
 public:
  // Borrows both.
  StepPacker(const CudaExecutor& executor, const HostSampling& host);

  // The shape of the step, padded, and the rows of logits of each row of the batch. In a decode-only step every token
  // has one, wanted or not.
  StepShape plan(const StepBatch& batch, LogitsPlan& logits) const;
  // Writes the inputs of the step that was planned; `out` holds InputLayout's bytes for its extents. `written` belongs
  // to that memory, which nobody else writes.
  void pack(const StepBatch& batch, const StepShape& shape, const SlotTables& tables,
            std::span<const RowLogits> row_logits, std::byte* out, WrittenInputs& written);

 private:
  bool can_spread(const StepRow& row) const;
  bool continues(const StepBatch& batch, const StepRow& row) const;
  std::uint64_t version_of(const StepRow& row) const;
  void advance(const StepRow& row);
  void add_tokens(const StepBatch& batch, const StepRow& row, bool spread);
  void add_tables(std::int64_t first_seq, const SlotTables& tables, int slot, WrittenInputs& written);
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
  std::int64_t seq_ = 0, token_ = 0, logit_ = 0;               // written so far
  std::vector<std::int32_t> adapter_tokens_, adapter_logits_;  // slots of a step's tokens and rows of logits
};

}  // namespace tl::cuda
