// A rank of a stage, and its part of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/cuda_executor.h"
#include "cuda/ranks/stage_link.h"
#include "executor/step.h"

namespace tl::cuda {

// Host memory for `num_blocks` KV blocks. Throws LimitError.
PinnedBuffer make_host_cache(const CudaExecutor& executor, std::int64_t num_blocks);

struct StageRank {
  CudaExecutor* executor;
  PinnedBuffer host_cache;  // for KV blocks of swapped-out requests and of prefixes
  RowSource* from;          // rows from the previous stage; null in the first stage
  RowSink* to;              // rows to the next stage; null in the last stage

  // Enqueues copies of KV blocks. The rank's device must be current.
  void enqueue_copies(std::span<const CopyOrder> copies) const;
  // Enqueues the copies and the forward pass of a step, and the transfers of rows from and to other stages. Neither
  // waits for the tokens that the step continues nor draws tokens. A step of no tokens only copies blocks.
  void enqueue(std::span<const CopyOrder> copies, const StepShape& shape, const std::byte* inputs) const;
};

}  // namespace tl::cuda
