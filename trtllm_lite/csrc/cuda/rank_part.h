// The part of a step that one of several ranks has.
#pragma once

#include <exception>
#include <string>

#include "cuda/cuda_executor.h"

namespace tl::cuda {

// Such as "rank 1 on GPU 3".
inline std::string name_of(const CudaExecutor& rank) {
  return "rank " + std::to_string(rank.engine().manifest().mapping.rank) + " on GPU " +
         std::to_string(rank.device().index());
}

// Lets `put` put a rank's part of a step on its stream, with its context current. Those of other ranks may wait for it
// already: if it fails, they end, and the engine with them. One rank has no watchdog.
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
