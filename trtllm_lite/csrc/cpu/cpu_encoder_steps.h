// Runs the steps of an encoder on CPUs for its event loop.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "executor/step.h"
#include "host/logits_executor.h"

namespace tl {

// The rows of a step are whole texts. wait() computes: the event loop has nothing else to do before it knows the result
// of a step whose end it awaits.
class CpuEncoderSteps final : public StepExecutor {
 public:
  // Borrows the executor, whose engine is an encoder.
  explicit CpuEncoderSteps(LogitsExecutor& executor);

  int num_slots() const override { return 0; }
  void set_slot(int, std::shared_ptr<const SlotParams>, std::span<const std::int32_t>, int) override {}
  void launch(const StepBatch& batch) override { launched_.push_back(&batch); }
  void wait(StepResult& result) override;

 private:
  StepRequest pack(const StepBatch& batch);

  LogitsExecutor& executor_;
  const std::int64_t tokens_per_block_;
  std::deque<const StepBatch*> launched_;
  std::vector<std::int32_t> seq_lens_, past_lens_;
};

}  // namespace tl
