#include "cuda/ranks/stage_rank.h"

#include "executor/step_memory.h"

namespace tl::cuda {

PinnedBuffer make_host_cache(const CudaExecutor& executor, std::int64_t num_blocks) {
  return PinnedBuffer(static_cast<std::size_t>(num_blocks) * executor.block_bytes(), "KV cache on the host",
                      "lower host_cache_size");
}

void StageRank::enqueue_copies(std::span<const CopyOrder> copies) const {
  const std::size_t block_bytes = executor->block_bytes();
  copy_blocks(copies, *executor,
              [&](std::int32_t index) { return host_cache.data() + static_cast<std::size_t>(index) * block_bytes; });
}

void StageRank::enqueue(std::span<const CopyOrder> copies, const StepShape& shape, const std::byte* inputs) const {
  enqueue_copies(copies);
  if (shape.num_tokens == 0) return;
  if (from != nullptr) from->receive(shape.num_tokens);
  executor->enqueue_forward(shape, inputs);
  if (to != nullptr) to->send(shape.num_tokens);
}

}  // namespace tl::cuda
