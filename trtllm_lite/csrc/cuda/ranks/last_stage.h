// The last stage of a pipeline whose other stages run in other processes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/ranks/cuda_group.h"
#include "cuda/ranks/earlier_stages.h"

namespace tl::cuda {

class LastStage final : public DeviceExecutor {
 public:
  // See CudaGroup; `engines` are those of the last stage (check_stage).
  LastStage(std::span<const Engine* const> engines, std::span<const int> devices, std::int64_t num_blocks,
            const std::vector<std::string>& library_directories, std::chrono::nanoseconds timeout,
            std::unique_ptr<StageCalls> others);

  // See EarlierStages::connect. Called before make_step_executor().
  void connect(const Nccl& nccl, std::span<const NcclId> ids) { earlier_.connect(nccl, ids); }

  const Engine& engine() const override { return group_.engine(); }
  std::int64_t num_blocks() const override { return group_.num_blocks(); }
  // The memory use of all stages.
  MemoryUse memory() const override;
  StepOutput output(const std::string& name, const RowSlice& slice) override { return group_.output(name, slice); }
  std::vector<ExpertCounts> expert_counts() override { return group_.expert_counts(); }

 private:
  std::unique_ptr<StepExecutor> make_decoder_steps(std::int64_t num_host_blocks, int max_batch_size) override;

  CudaGroup group_;
  EarlierStages earlier_;
};

}  // namespace tl::cuda
