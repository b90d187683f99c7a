#include "cuda/follower.h"

#include "batching/step_memory.h"

namespace tl::cuda {

PinnedBuffer make_host_cache(const CudaExecutor& executor, std::int64_t num_blocks) {
  return PinnedBuffer(static_cast<std::size_t>(num_blocks) * executor.block_bytes(), "swapped KV cache",
                      "lower host_cache_size");
}

std::byte* host_block(const PinnedBuffer& cache, std::int32_t index, const CudaExecutor& executor) {
  return cache.data() + static_cast<std::size_t>(index) * executor.block_bytes();
}

void Follower::enqueue(std::span<const CopyOrder> copies, const StepShape& shape, const std::byte* inputs) const {
  executor->device().make_current();
  copy_blocks(copies, *executor, [this](std::int32_t index) { return host_block(host_cache, index, *executor); });
  if (shape.num_tokens == 0) return;
  if (from != nullptr) from->receive(shape.num_tokens);
  executor->enqueue_forward(shape, inputs);
  if (to != nullptr) to->send(shape.num_tokens);
}

}  // namespace tl::cuda
