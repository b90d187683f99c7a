// HostStepExecutor runs steps for the event loop on an executor whose logits come to the host: one worker thread drives
// it and a RowSampler.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "batching/step.h"
#include "batching/step_memory.h"
#include "host/anonymous_memory.h"
#include "host/logits_executor.h"
#include "sampling/row_sampler.h"

namespace tl {

class HostStepExecutor : public StepExecutor {
 public:
  // Borrows the executor. `num_host_blocks`: KV blocks that swapped-out requests may take on the host.
  HostStepExecutor(LogitsExecutor& executor, std::int64_t num_host_blocks);
  ~HostStepExecutor() override;

  int num_slots() const override { return rows_.num_slots(); }
  void set_slot(int slot, std::shared_ptr<const SlotParams> params, std::span<const std::int32_t> tokens,
                int num_prompt) override;
  void launch(const StepBatch& batch) override;
  void wait(StepResult& result) override;

 private:
  struct Finished {
    StepResult result;
    std::exception_ptr error;
  };
  void work();
  void run(const StepBatch& batch, StepResult& result);
  std::span<std::byte> host_block(std::int32_t index) const;
  void pack(const StepBatch& batch);
  void pack_row(const StepBatch& batch, const StepRow& row);
  void pack_tables(const StepBatch& batch);
  void sample(const StepBatch& batch, std::span<const float> logits, ThreadPool& pool, StepResult& result);

  LogitsExecutor& executor_;
  RowSampler rows_;
  const KvGeometry geometry_;
  BlockTables blocks_;
  AnonymousMemory host_cache_;

  // The step in the form that the executor takes; only the worker uses these.
  std::vector<std::int32_t> token_ids_, seq_lens_, past_lens_, block_tables_, logits_indices_;
  std::int64_t blocks_per_row_ = 1;
  std::vector<const LowRankPart*> adapters_;  // of each token; empty if none has one
  std::vector<RowLogits> row_logits_;
  std::vector<SamplerWorkspace> workspaces_;  // one per thread of the executor

  std::mutex mutex_;
  std::condition_variable launched_, finished_;
  std::deque<const StepBatch*> to_run_;
  std::deque<Finished> to_collect_;
  bool broken_ = false;  // a step failed, and steps launched before its failure was known must fail, too
  bool stopping_ = false;
  std::thread worker_;
};

}  // namespace tl
