// One rank's part of a step.
#pragma once

#include <exception>
#include <string>

#include "cuda/cuda_executor.h"

namespace tl::cuda {

// The name of a rank in messages, such as "rank 1 on GPU 3".
inline std::string name_of(const CudaExecutor& rank) {
  return "rank " + std::to_string(rank.engine().manifest().mapping.rank) + " on GPU " +
         std::to_string(rank.device().index());
}

// Calls `put`, which enqueues a rank's part of a step, with the rank's context current. If it throws, other ranks may
// already wait for this one: their waits are ended, and the engine with them. `watchdog` is null for one rank.
template <typename Put>
void put_part(const CudaExecutor& rank, RankWatchdog* watchdog, const Put& put) {
  try {
    rank.device().make_current();
    put();
  } catch (const std::exception& error) {
    if (watchdog == nullptr) throw;
    watchdog->fail(name_of(rank) + ": " + error.what());
  }
}

}  // namespace tl::cuda
