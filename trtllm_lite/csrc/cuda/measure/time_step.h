// Measures where the time of a step goes.
#pragma once

#include <memory>
#include <vector>

#include "cuda/cuda_executor.h"
#include "host/timed_step.h"

namespace tl::cuda {

// Times a step, instruction by instruction. Its sequences use `adapters`, which are in their slots already, in turn.
// Overwrites the cache. No step may be in flight. Throws LimitError as check_timed_step does.
std::vector<InstructionTime> time_step(CudaExecutor& executor, const TimedStepShape& timed, int repeats,
                                       const std::vector<std::shared_ptr<Adapter>>& adapters);

}  // namespace tl::cuda
