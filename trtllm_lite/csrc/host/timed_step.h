// The steps that are timed instruction by instruction, and their times.
#pragma once

#include <cstdint>
#include <string>

#include "executor/device_executor.h"

namespace tl {

// `num_rows` sequences with `past_len` tokens in the cache and `num_tokens` new tokens each.
struct TimedStepShape {
  int num_rows = 1;
  int num_tokens = 1;
  int past_len = 0;

  std::int32_t token(int row, int place, std::int64_t vocab_size) const {
    return static_cast<std::int32_t>((std::int64_t{row} * 7919 + std::int64_t{place} * 104729) % vocab_size);
  }
};

// The time of an instruction: the median of several runs.
struct InstructionTime {
  std::string name;
  double microseconds = 0;
};

// Throws LimitError if the executor's engine has no such step or its cache no room for it, or `repeats` is not 1 to
// 1,000.
void check_timed_step(const DeviceExecutor& executor, const TimedStepShape& shape, int repeats);

}  // namespace tl
