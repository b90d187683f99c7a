// Runs steps without an event loop, for a caller who schedules by itself.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/cuda_executor.h"
#include "host/step_inputs.h"

namespace tl::cuda {

// Runs one step and returns its float32 logits [num logits_indices, vocab_size]. Threads that call it take turns; no
// event loop may use the executor meanwhile. Throws LimitError, before anything has been computed, if the request is
// not within the engine's limits. Of a sequence whose logits are wanted, those from the first wanted row on count
// towards the limit of rows.
std::unique_ptr<float[]> run_step(CudaExecutor& executor, const StepRequest& request);

// Runs one step, whose results stay on the device: see CudaExecutor::output. Takes turns as run_step does. Throws
// LimitError, before anything has been computed.
void compute(CudaExecutor& executor, const StepRequest& request);

// The bytes of a KV block, block_bytes() of them: keys, then values, of each layer in turn. Takes turns with steps.
// Throws LimitError.
std::unique_ptr<std::uint8_t[]> read_block(CudaExecutor& executor, std::int64_t block);

}  // namespace tl::cuda
