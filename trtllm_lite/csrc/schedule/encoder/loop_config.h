// What the event loop of an encoder is made for.
#pragma once

#include <memory>

#include "schedule/encoder/encoder_planner.h"
#include "schedule/loop/loop_config.h"

namespace tl {

struct EncoderLoopConfig final : EventLoopConfig {
  std::unique_ptr<Planner> make_planner(StepExecutor& executor) const override;
  Check make_check() const override;
  int max_requests_of_step() const override { return planner.max_batch_size; }

  EncoderConfig planner;
  int vocab_size = 0;
};

}  // namespace tl
