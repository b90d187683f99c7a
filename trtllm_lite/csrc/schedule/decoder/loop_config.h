// What the event loop of a decoder is made for.
#pragma once

#include <cstdint>
#include <memory>

#include "caches/kv_cache_manager.h"
#include "schedule/loop/loop_config.h"
#include "schedule/scheduler_config.h"

namespace tl {

struct DecoderLoopConfig final : EventLoopConfig {
  std::unique_ptr<Planner> make_planner(StepExecutor& executor) const override;
  Check make_check() const override;
  int max_requests_of_step() const override { return scheduler.max_batch_size; }

  SchedulerConfig scheduler;
  KvManagerConfig cache;
  int vocab_size = 0;
  std::int64_t token_row_bytes = 0;  // see RequestLimits
  int max_input_len = 0;
};

}  // namespace tl
