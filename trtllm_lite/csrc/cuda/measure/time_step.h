// Measures where the time of a step goes.
#pragma once

#include <memory>
#include <vector>

#include "cuda/cuda_executor.h"

namespace tl::cuda {

// Times a step of `num_rows` sequences that have `past_len` tokens in the cache and get `num_tokens` new ones each,
// instruction by instruction, and have `adapters`, which are in their slots, in turn. What the cache holds is
// overwritten. Throws LimitError if the engine has no such step.
std::vector<InstructionTime> time_step(CudaExecutor& executor, int num_rows, int num_tokens, int past_len, int repeats,
                                       const std::vector<std::shared_ptr<Adapter>>& adapters);

}  // namespace tl::cuda
