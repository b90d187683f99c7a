// The numbers of the steps in flight.
#pragma once

#include <cstdint>

namespace tl {

struct StepNumbers {
  int num_stages = 1;  // of the pipeline (StepExecutor::num_stages)
  std::uint64_t launched = 0, ended = 0;

  bool any_in_flight() const { return launched != ended; }
  int num_in_flight() const { return static_cast<int>(launched - ended); }
};

}  // namespace tl
