// Measures which of several computations of the same values is fastest, on a GPU under load.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cuda/device/driver.h"

namespace tl::cuda {

struct TimingEffort {
  int repeats = 7;         // runs of every candidate; candidates take turns
  bool sustained = false;  // whether the fastest are also timed alone, long enough for the GPU to settle at its power
                           // limit
};

// Microseconds of one run of each candidate, a function that enqueues the run on the stream; a run should touch more
// memory than the L2 cache holds. With `sustained`, only the fastest few and the first candidate have a time: at the
// power limit, the clock depends on the energy that a candidate takes, which shows only if it runs alone. Throws
// DeviceError.
std::vector<std::optional<double>> time_candidates(const std::vector<std::function<void()>>& candidates,
                                                   const TimingEffort& effort, Stream stream);

}  // namespace tl::cuda
