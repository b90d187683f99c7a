// HostStepExecutor runs steps for the event loop on an executor whose logits come to the host. A worker thread drives
// the executor and a RowSampler. While it waits for the logits of a step, launch() begins further steps if there is
// room, and the masks of guided rows are computed. A row whose masks are late generates no token in that step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "executor/step.h"
#include "executor/step_memory.h"
#include "host/anonymous_memory.h"
#include "host/host_masks.h"
#include "host/logits_executor.h"
#include "host/packed_step.h"
#include "sampling/row_sampler.h"

namespace tl {

class HostStepExecutor : public StepExecutor {
 public:
  // Borrows the executor. `num_host_blocks`: KV blocks of swapped-out requests and of prefixes.
  HostStepExecutor(LogitsExecutor& executor, std::int64_t num_host_blocks);
  ~HostStepExecutor() override;

  int num_slots() const override { return rows_.num_slots(); }
  int num_stages() const override { return executor_.num_stages(); }
  void set_slot(int slot, std::shared_ptr<const SlotParams> params, std::span<const std::int32_t> tokens,
                int num_prompt) override;
  void launch(const StepBatch& batch) override;
  void wait(StepResult& result) override;
  bool says_late_with_results() const override { return true; }

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  struct Step {
    const StepBatch* batch;
    PackedStep* packed;
    StepResult result = {};
    std::chrono::nanoseconds waited{};  // the time waited for masks
    std::exception_ptr error = {};
    Clock::time_point start = {};
    bool computes = false;  // the executor has begun the step
  };
  void work();
  void begin_steps(Lock& lock);
  void finish_oldest(Lock& lock);
  void begin(Step& step);
  void finish(Step& step);
  void finish_rows(Step& step, std::span<const float> logits, ThreadPool& pool);
  std::span<std::byte> host_block(std::int32_t index) const;

  LogitsExecutor& executor_;
  RowSampler rows_;
  HostMasks masks_;  // masks of the step being finished
  const KvGeometry geometry_;
  BlockTables blocks_;
  AnonymousMemory host_cache_;
  std::vector<PackedStep> packed_;            // steps that are begun but not finished, in rotation
  std::vector<SamplerWorkspace> workspaces_;  // one per thread of the executor

  std::mutex mutex_;
  std::condition_variable changed_, finished_;
  std::deque<const StepBatch*> to_begin_;
  std::deque<Step> begun_;
  std::deque<Step> to_collect_;
  std::uint64_t num_begun_ = 0;
  bool is_beginning_ = false;  // a step is being begun, and is in none of the three queues
  bool is_finishing_ = false;  // the oldest step of begun_ is being finished
  bool broken_ = false;        // a step failed; steps launched before this was known must fail too
  bool stopping_ = false;
  std::thread worker_;
};

}  // namespace tl
