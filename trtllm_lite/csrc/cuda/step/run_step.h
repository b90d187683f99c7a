// Runs single steps without an event loop, for callers that do the scheduling.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/cuda_executor.h"
#include "host/step_inputs.h"

namespace tl::cuda {

// Runs one step and returns its float32 logits [num logits_indices, vocab_size]. Threads take turns; no event loop may
// use the executor meanwhile. Throws LimitError, before any computation, if the request exceeds a limit of the engine.
// All rows of a sequence from the first wanted one on count towards the limit of rows of logits.
std::unique_ptr<float[]> run_step(CudaExecutor& executor, const StepRequest& request);

// Runs one step and leaves its results on the device: see CudaExecutor::output. Takes turns as run_step does. Throws
// LimitError before any computation.
void compute(CudaExecutor& executor, const StepRequest& request);

// Copies a KV block of block_bytes() bytes: for each layer its keys, then its values. Takes turns with steps. Throws
// LimitError.
std::unique_ptr<std::uint8_t[]> read_block(CudaExecutor& executor, std::int64_t block);

}  // namespace tl::cuda
