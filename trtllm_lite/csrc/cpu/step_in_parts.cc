// The part of CpuExecutor that runs steps of encoders in parts.
#include <chrono>

#include "cpu/beside.h"
#include "cpu/cpu_encoder_steps.h"
#include "cpu/cpu_executor.h"
#include "executor/beside.h"

namespace tl {

CpuExecutor::CpuExecutor(const CpuExecutor& other)
    : CpuExecutor(other.engine_, other.pool_, other.num_blocks_, other.isa_,
                  beside_limits(step_limits(other.engine_, other.num_blocks_)), AnonymousMemory::Pages::kDefault,
                  nullptr, nullptr) {}

std::unique_ptr<StepExecutor> CpuExecutor::make_encoder_steps() {
  const StepBounds bounds = beside_bounds(engine_.manifest(), kBesideTokens);
  if (bounds.max_rows > 0) beside_.reset(new CpuExecutor(*this));
  return std::make_unique<CpuEncoderSteps>(*this, beside_.get(), bounds);
}

void CpuExecutor::begin_parts(const StepRequest& request) {
  const std::lock_guard lock(mutex_);
  take_inputs(request);
  next_call_ = 0;
}

bool CpuExecutor::run_part(double seconds) {
  using Clock = std::chrono::steady_clock;
  const std::lock_guard lock(mutex_);
  const Clock::time_point begin = Clock::now();
  while (next_call_ < calls_.size()) {
    const Call& call = calls_[next_call_++];
    if (has_work(call)) run_call(call, {});
    if (std::chrono::duration<double>(Clock::now() - begin).count() >= seconds) break;
  }
  return next_call_ == calls_.size();
}

}  // namespace tl
