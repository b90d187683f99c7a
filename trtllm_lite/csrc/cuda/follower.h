// Another rank than the one that draws tokens: it computes logits alone, or what the next stage goes on with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "batching/step.h"
#include "cuda/cuda_executor.h"
#include "cuda/stage_link.h"

namespace tl::cuda {

// Memory for KV blocks of requests that are swapped out. Throws LimitError.
PinnedBuffer make_host_cache(const CudaExecutor& executor, std::int64_t num_blocks);
std::byte* host_block(const PinnedBuffer& cache, std::int32_t index, const CudaExecutor& executor);

struct Follower {
  CudaExecutor* executor;
  PinnedBuffer host_cache;
  RowSource* from;  // the stage before; null in the first
  RowSink* to;      // null in the last

  // Puts its part of a step on its stream. A step of no tokens copies blocks alone.
  void enqueue(std::span<const CopyOrder> copies, const StepShape& shape, const std::byte* inputs) const;
};

}  // namespace tl::cuda
