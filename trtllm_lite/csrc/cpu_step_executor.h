// The CPU as the event loop's device: an Executor and a Sampler, driven by one worker thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "anonymous_memory.h"
#include "batching/step.h"
#include "executor.h"
#include "sampling/sampler.h"

namespace tl {

// What a request asks of this device.
struct CpuSlotParams : SlotParams {
  SamplingParams sampling;
  bool context_logits = false;  // needs an engine built with gather_context_logits, as prompt_logprobs do
  bool generation_logits = false;
};

// What a row yields beside its token; empty unless asked for.
struct CpuRowOutputs : RowOutputs {
  explicit CpuRowOutputs(std::size_t num_logits) : vocab_size(num_logits) {}

  std::size_t vocab_size;
  std::optional<RowLogprobs> logprobs;       // of the sampled token
  std::vector<float> generation_logits;      // [vocab_size], what the token was sampled from
  int first_position = 0;                    // of the prompt positions below
  std::vector<float> context_logits;         // [positions, vocab_size]
  std::vector<RowLogprobs> prompt_logprobs;  // of the prompt tokens that follow the positions
};

class CpuStepExecutor : public StepExecutor {
 public:
  // Borrows the executor. `num_host_blocks`: KV blocks that swapped-out requests may take on the host.
  CpuStepExecutor(Executor& executor, int num_slots, int num_host_blocks);
  ~CpuStepExecutor() override;

  int num_slots() const override { return sampler_.num_slots(); }
  void set_slot(int slot, std::shared_ptr<const SlotParams> params, std::span<const std::int32_t> tokens,
                int num_prompt) override;
  void launch(const StepBatch& batch) override;
  void wait(StepResult& result) override;

 private:
  struct SlotData {
    std::shared_ptr<const CpuSlotParams> params;
    int num_prompt = 0;
    std::vector<std::int32_t> blocks;
  };
  struct Finished {
    StepResult result;
    std::exception_ptr error;
  };
  // The rows of logits that belong to a row of the step: of prompt positions, then of the sampled one, which may be
  // the last of the former.
  struct RowLogits {
    std::int64_t first = 0;
    int num_rows = 0;
    int num_positions = 0;  // prompt positions whose outputs are wanted
  };

  void work();
  void run(const StepBatch& batch, StepResult& result);
  void copy(const CopyOrder& order);
  std::span<std::byte> host_block(std::int32_t index) const;
  void pack(const StepBatch& batch);
  void pack_row(const StepBatch& batch, const StepRow& row);
  void pack_tables(const StepBatch& batch);
  int first_output_position(const StepRow& row) const;
  void sample(const StepBatch& batch, std::span<const float> logits, ThreadPool& pool, StepResult& result);
  void finish_row(const StepRow& row, const RowLogits& at, std::span<const float> logits, SamplerWorkspace& workspace,
                  RowResult& result);
  void describe_prompt(const StepRow& row, const RowLogits& at, std::span<const float> logits,
                       SamplerWorkspace& workspace, RowResult& result);

  Executor& executor_;
  const std::size_t vocab_size_;
  Sampler sampler_;
  std::vector<SlotData> slots_;
  AnonymousMemory host_cache_;

  // The worker's: the step as the executor takes it.
  std::vector<std::int32_t> token_ids_, seq_lens_, past_lens_, block_tables_, logits_indices_;
  std::int64_t blocks_per_row_ = 1;
  std::vector<RowLogits> row_logits_;
  std::vector<SamplerWorkspace> workspaces_;  // one per thread of the executor

  std::mutex mutex_;
  std::condition_variable launched_, finished_;
  std::deque<const StepBatch*> to_run_;
  std::deque<Finished> to_collect_;
  bool broken_ = false;  // a step failed: those launched before anybody heard of it have nothing to build on
  bool stopping_ = false;
  std::thread worker_;
};

}  // namespace tl
