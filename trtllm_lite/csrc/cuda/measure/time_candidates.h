// Measures which of several ways to compute the same values is fastest, on a card as it is under load.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cuda/driver.h"

namespace tl::cuda {

struct TimingEffort {
  int repeats = 7;         // of every candidate, in turns
  bool sustained = false;  // then each of the fastest alone, as long as a card needs to settle at its power limit
};

// Microseconds of one run of each candidate, which puts itself on the stream; a run should touch more memory than the
// L2 cache holds. With `sustained`, only the fastest few and the first have one: the clock of a card at its power limit
// follows from the energy of what it runs, which shows only when nothing else runs.
// Throws DeviceError.
std::vector<std::optional<double>> time_candidates(const std::vector<std::function<void()>>& candidates,
                                                   const TimingEffort& effort, Stream stream);

}  // namespace tl::cuda
