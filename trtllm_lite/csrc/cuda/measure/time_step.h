// Measures where the time of a step goes.
#pragma once

#include <memory>
#include <vector>

#include "cuda/cuda_executor.h"

namespace tl::cuda {

// Times a step, instruction by instruction. It has `num_rows` sequences with `past_len` tokens in the cache and
// `num_tokens` new tokens each. Sequences use `adapters`, which are in their slots already, in turn. Overwrites the
// cache. Throws LimitError if the engine has no such step.
std::vector<InstructionTime> time_step(CudaExecutor& executor, int num_rows, int num_tokens, int past_len, int repeats,
                                       const std::vector<std::shared_ptr<Adapter>>& adapters);

}  // namespace tl::cuda
