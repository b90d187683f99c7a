#include "cuda/ranks/last_stage.h"

#include <utility>

#include "cuda/step/cuda_step_executor.h"

namespace tl::cuda {

LastStage::LastStage(std::span<const Engine* const> engines, std::span<const int> devices, std::int64_t num_blocks,
                     const std::vector<std::string>& library_directories, std::chrono::nanoseconds timeout,
                     std::unique_ptr<StageCalls> others)
    : group_(engines, devices, num_blocks, library_directories, timeout),
      earlier_(std::move(others), group_.ranks(), timeout) {}

MemoryUse LastStage::memory() const {
  MemoryUse all = earlier_.memory();
  const MemoryUse own = group_.memory();
  all.weights += own.weights;
  all.kv_cache += own.kv_cache;
  all.workspace += own.workspace;
  return all;
}

std::unique_ptr<StepExecutor> LastStage::make_decoder_steps(std::int64_t num_host_blocks, int max_batch_size) {
  auto steps =
      std::make_unique<CudaStepExecutor>(group_.ranks(), num_host_blocks, &group_.watchdog(), nullptr, &earlier_);
  steps->capture_decode_steps(max_batch_size);
  return steps;
}

}  // namespace tl::cuda
