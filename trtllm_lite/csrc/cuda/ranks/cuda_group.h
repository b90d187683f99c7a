// The ranks of one engine, for all its stages or for one, on the GPUs of one machine. One process drives all ranks.
// They access each other's memory directly or communicate by NCCL.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/cuda_executor.h"
#include "cuda/ranks/rank_communicators.h"

namespace tl::cuda {

class CudaGroup final : public DeviceExecutor {
 public:
  // Borrows the engines, one for each rank in order (check_ranks, check_stage). Engine i is loaded on GPU `devices[i]`.
  // Throws as CudaExecutor does, EngineError if the engines are not the ranks of one engine, DeviceError if a GPU
  // cannot access another, or if NCCL is missing or fails. A rank has failed if it comes to a collective later than
  // another by more than `timeout`.
  CudaGroup(std::span<const Engine* const> engines, std::span<const int> devices, std::int64_t num_blocks,
            const std::vector<std::string>& library_directories, std::chrono::nanoseconds timeout);
  ~CudaGroup() override;

  const Engine& engine() const override { return drawing().engine(); }
  std::int64_t num_blocks() const override { return drawing().num_blocks(); }
  // The memory use of all stages.
  MemoryUse memory() const override;
  StepOutput output(const std::string& name, const RowSlice& slice) override { return drawing().output(name, slice); }
  std::vector<ExpertCounts> expert_counts() override;

  std::vector<CudaExecutor*> ranks() const;
  RankWatchdog& watchdog() const { return *watchdog_; }

 private:
  std::unique_ptr<StepExecutor> make_decoder_steps(std::int64_t num_host_blocks, int max_batch_size) override;
  // The first rank of the last stage, which draws tokens if all stages are here.
  CudaExecutor& drawing() const;
  RankPeers peers_of(const CudaExecutor& rank) const;
  void reach_each_other() const;
  void connect(const Nccl& library, std::chrono::nanoseconds timeout);

  std::vector<std::unique_ptr<CudaExecutor>> ranks_;
  std::unique_ptr<RankWatchdog> watchdog_;
  std::unique_ptr<RankCommunicators> communicators_;  // null if ranks access each other's memory
};

}  // namespace tl::cuda
