// A rank of a stage, and what it has of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "batching/step.h"
#include "cuda/cuda_executor.h"
#include "cuda/stage_link.h"

namespace tl::cuda {

// Memory for so many KV blocks. Throws LimitError.
PinnedBuffer make_host_cache(const CudaExecutor& executor, std::int64_t num_blocks);

struct StageRank {
  CudaExecutor* executor;
  PinnedBuffer host_cache;  // for KV blocks of requests that are swapped out
  RowSource* from;          // the stage before; null in the first
  RowSink* to;              // the next one; null in the last

  // Puts copies of blocks on its stream. Its device is current.
  void enqueue_copies(std::span<const CopyOrder> copies) const;
  // Puts a step on its stream, but for the tokens that it continues and those that are drawn. One of no tokens copies
  // blocks alone.
  void enqueue(std::span<const CopyOrder> copies, const StepShape& shape, const std::byte* inputs) const;
};

}  // namespace tl::cuda
