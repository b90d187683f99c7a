// Measures where the time of a step on the CPU goes.
#pragma once

#include <vector>

#include "cpu/cpu_executor.h"
#include "host/timed_step.h"

namespace tl {

// Times a step, instruction by instruction. Overwrites the cache. No step may be in progress. Throws LimitError as
// check_timed_step does.
std::vector<InstructionTime> time_step(CpuExecutor& executor, const TimedStepShape& timed, int repeats);

}  // namespace tl
