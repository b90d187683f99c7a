// Writes a step as the device takes it: packed inputs, padding rows, and which rows of logits belong to whom.
#pragma once

#include <span>
#include <vector>

#include "batching/step.h"
#include "batching/step_memory.h"
#include "cuda/cuda_executor.h"
#include "cuda/host_sampling.h"

namespace tl::cuda {

class StepPacker {
 public:
  // Borrows both.
  StepPacker(const CudaExecutor& executor, const HostSampling& host);

  // The shape of the step, padded, and the rows of logits of each row of the batch. In a decode-only step every row has
  // one, wanted or not.
  StepShape plan(const StepBatch& batch, std::vector<RowLogits>& row_logits) const;
  // Writes the inputs of the step that was planned; `out` holds InputLayout's bytes for its extents.
  void pack(const StepBatch& batch, const StepShape& shape, const BlockTables& blocks,
            std::span<const RowLogits> row_logits, std::byte* out);

 private:
  void add_tokens(const StepBatch& batch, const StepRow& row);
  void add_table(const StepRow& row, std::span<const std::int32_t> blocks);
  void add_logits(const StepRow& row, const RowLogits& logits);
  void pad(const StepShape& shape);
  std::int32_t* ints(CudaInputIndex input) const {
    return reinterpret_cast<std::int32_t*>(out_ + layout_.offsets[input]);
  }
  float* floats(CudaInputIndex input) const { return reinterpret_cast<float*>(out_ + layout_.offsets[input]); }
  void set_sampling(std::int64_t row, const RequestParams& params, std::int32_t slot, int num_generated);

  const CudaExecutor& executor_;
  const HostSampling& host_;
  const std::int64_t tokens_per_block_;
  std::byte* out_ = nullptr;
  InputLayout layout_;
  std::int64_t seq_ = 0, token_ = 0, logit_ = 0;  // written so far
};

}  // namespace tl::cuda
