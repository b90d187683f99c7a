// The ranks of one engine on the CPU, each with an executor and a thread. The group takes steps like a single executor.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cpu/cpu_executor.h"
#include "host/logits_executor.h"
#include "ranks/rank_rendezvous.h"

namespace tl {

class CpuGroup final : public OneStageExecutor {
 public:
  // Borrows the engines (check_ranks), one for each rank in order. Divides num_threads among them. Throws as
  // CpuExecutor does.
  CpuGroup(std::span<const Engine* const> engines, std::int64_t num_threads, std::int64_t num_blocks,
           std::unique_ptr<RankRendezvous> rendezvous);
  ~CpuGroup() override;

  std::size_t block_bytes() const override;
  void copy_block(std::int64_t src, std::int64_t dst) override;
  void save_block(std::int64_t block, std::span<std::byte> out) override;
  void load_block(std::int64_t block, std::span<const std::byte> data) override;

  std::int64_t num_blocks() const override { return first().num_blocks(); }
  const Engine& engine() const override { return first().engine(); }
  int num_threads() const override { return first().num_threads(); }
  MemoryUse memory() const override;
  StepOutput output(const std::string& name, const RowSlice& slice) override { return first().output(name, slice); }
  std::vector<ExpertCounts> expert_counts() override;

  // The executor of rank 0.
  const CpuExecutor& first() const { return *ranks_->executors.front(); }

 private:
  // State of the ranks' threads. The thread of a rank that was given up keeps it alive.
  struct Ranks {
    std::unique_ptr<RankRendezvous> rendezvous;
    std::vector<std::unique_ptr<CpuExecutor>> executors;
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t num_steps = 0;  // steps begun
    bool stopping = false;
    StepRequest request;
    const LogitsUse* use = nullptr;  // used by rank 0
  };
  // Throws DeviceError if a rank does not come to a collective in time; all later steps then throw too.
  void compute(const StepRequest& request, const LogitsUse& use) override;
  static void work(const std::shared_ptr<Ranks>& ranks, std::size_t rank);
  CpuExecutor& first() { return *ranks_->executors.front(); }

  std::shared_ptr<Ranks> ranks_;
  HomeProcess home_;
  std::vector<std::thread> threads_;
};

}  // namespace tl
