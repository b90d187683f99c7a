// What the event loop of an encoder is made for.
#pragma once

#include <cstdint>
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
  std::int64_t token_row_bytes = 0;  // bytes of a patch that takes the place of a token; 0 if the encoder reads texts
  std::int64_t tokens_per_row = 0;   // patches of each row that is made of an image; 0 if the encoder reads texts
};

}  // namespace tl
