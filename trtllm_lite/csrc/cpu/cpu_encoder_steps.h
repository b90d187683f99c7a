// Runs the steps of an encoder on CPUs for its event loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "cpu/cpu_executor.h"
#include "executor/step.h"

namespace tl {

// The rows of a step are whole texts. wait() computes: the event loop has nothing else to do before it knows the result
// of a step whose end it awaits. A step is paused between two instructions; others run beside it on an executor with
// memory of its own.
class CpuEncoderSteps final : public StepExecutor {
 public:
  // Borrows the executor, whose engine is an encoder, and the one for steps within `bounds` beside a paused one; null
  // if no step is to be paused.
  CpuEncoderSteps(CpuExecutor& executor, CpuExecutor* beside, const StepBounds& bounds);

  int num_slots() const override { return 0; }
  void set_slot(int, std::shared_ptr<const SlotParams>, std::span<const std::int32_t>, int) override {}
  void launch(const StepBatch& batch) override { launched_.push_back(&batch); }
  void wait(StepResult& result) override;
  StepBounds beside_paused() const override { return bounds_; }

 private:
  StepRequest pack(const StepBatch& batch);

  CpuExecutor& executor_;
  CpuExecutor* const beside_;
  const StepBounds bounds_;
  const std::int64_t tokens_per_block_, tokens_per_row_;
  const std::size_t embedding_size_;
  std::deque<const StepBatch*> launched_;
  std::vector<std::int32_t> seq_lens_, past_lens_;
  std::vector<TokenRow> token_rows_;
};

}  // namespace tl
