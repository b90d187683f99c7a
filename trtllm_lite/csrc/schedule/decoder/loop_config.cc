#include "schedule/decoder/loop_config.h"

#include <stdexcept>
#include <string>

#include "schedule/scheduler.h"

namespace tl {

std::unique_ptr<Planner> DecoderLoopConfig::make_planner(StepExecutor& executor) const {
  return std::make_unique<Scheduler>(scheduler, cache, executor);
}

EventLoopConfig::Check DecoderLoopConfig::make_check() const {
  if (vocab_size < 1 || max_input_len < 1 || max_requests < 1) {
    throw std::invalid_argument("event loop: vocab_size, max_input_len and max_requests must be at least 1");
  }
  if (!scheduler.enable_chunked_context && max_input_len > scheduler.max_num_tokens) {
    throw std::invalid_argument("event loop: without chunked context max_input_len (" + std::to_string(max_input_len) +
                                ") must not exceed max_num_tokens (" + std::to_string(scheduler.max_num_tokens) +
                                "): enable chunked context or change one of them");
  }
  const RequestLimits limits{.vocab_size = vocab_size,
                             .max_input_len = max_input_len,
                             .max_seq_len = scheduler.max_seq_len,
                             .max_batch_size = scheduler.max_batch_size,
                             .num_blocks = cache.num_kept_blocks(),
                             .geometry = with_steps_of(cache, scheduler.max_num_tokens).geometry(),
                             .token_row_bytes = token_row_bytes};
  return [limits](const RequestSpec& spec) { validate(spec, limits); };
}

}  // namespace tl
