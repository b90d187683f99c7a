// The pipeline stages of one engine on the CPU. Together they take steps like a single executor.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "host/home_process.h"
#include "host/logits_executor.h"

namespace tl {

class CpuPipeline final : public LogitsExecutor {
 public:
  // `stages`: the executors of two or more stages, in order (check_ranks), with equal numbers of blocks. Each stage but
  // the last has a thread, which passes on its results; the last computes a step in finish().
  explicit CpuPipeline(std::vector<std::unique_ptr<LogitsExecutor>> stages);

  int num_stages() const override { return static_cast<int>(stages_.size()); }
  void begin(const StepRequest& request) override;
  // Throws what the stages throw; a DeviceError names its stage.
  void finish(const LogitsUse& use) override;

  // Copies wait until no step is in progress, and are made in all stages.
  std::size_t block_bytes() const override;
  void copy_block(std::int64_t src, std::int64_t dst) override;
  void save_block(std::int64_t block, std::span<std::byte> out) override;
  void load_block(std::int64_t block, std::span<const std::byte> data) override;

  std::int64_t num_blocks() const override { return stages_.front()->num_blocks(); }
  const Engine& engine() const override { return stages_.front()->engine(); }
  int num_threads() const override { return stages_.back()->num_threads(); }
  MemoryUse memory() const override;
  StepOutput output(const std::string& name, const RowSlice& slice) override;
  std::vector<ExpertCounts> expert_counts() override;

 private:
  // A step that is begun but not finished.
  struct Step {
    explicit Step(const StepRequest& of) : request(of) {}

    StepRequest request;
    std::vector<float> made;  // results of the previous stage, for the next one
    std::exception_ptr error;
    std::size_t num_passed = 0;  // stages that have computed the step
  };
  // State that the threads share and keep alive.
  struct Pipe {
    ~Pipe();

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Step> steps;
    bool stopping = false;
    std::vector<std::thread> threads;  // one for each stage but the last
  };
  void work(std::size_t stage);
  void pass(Step& step, std::size_t stage);
  void run_stage(Step& step, std::size_t stage, const LogitsUse& use);
  Step* at(std::size_t stage);
  // Waits until no step is in progress, and returns a lock that keeps it so.
  std::unique_lock<std::mutex> lock_idle();

  std::vector<std::unique_ptr<LogitsExecutor>> stages_;
  HomeBound<Pipe> pipe_;
};

}  // namespace tl
