#include "schedule/encoder/loop_config.h"

#include <stdexcept>

namespace tl {

std::unique_ptr<Planner> EncoderLoopConfig::make_planner(StepExecutor& executor) const {
  return std::make_unique<EncoderPlanner>(planner, executor);
}

EventLoopConfig::Check EncoderLoopConfig::make_check() const {
  if (vocab_size < 1 || max_requests < 1) {
    throw std::invalid_argument("event loop: vocab_size and max_requests must be at least 1");
  }
  return [max_input_len = planner.max_input_len, vocab_size = vocab_size, row_bytes = token_row_bytes,
          per_row = tokens_per_row](const RequestSpec& spec) {
    validate_prompt(spec, max_input_len, vocab_size);
    validate_rows(spec, row_bytes, per_row);
  };
}

}  // namespace tl
