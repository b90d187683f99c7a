// Measures where the time of a step goes.
#pragma once

#include <vector>

#include "cuda/cuda_executor.h"

namespace tl::cuda {

// Times a step of `num_rows` sequences that have `past_len` tokens in the cache and get `num_tokens` new ones each,
// instruction by instruction. What the cache holds is overwritten. Throws LimitError if the engine has no such step.
std::vector<InstructionTime> time_step(CudaExecutor& executor, int num_rows, int num_tokens, int past_len, int repeats);

}  // namespace tl::cuda
