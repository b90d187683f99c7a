// What makes a plan for NVIDIA GPUs safe to hand to the driver, checked once when the engine is loaded. What a compiled
// kernel does with the addresses it is given is beyond any check: run engines of those whom you would trust to run
// code.
#pragma once

#include <iterator>
#include <string_view>

#include "engine/container.h"
#include "engine/cuda_plan.h"
#include "engine/manifest.h"

namespace tl {

// The inputs of a step. block_tables has a second extent, its row stride: the integer that bounds max_blocks_per_seq.
struct CudaStepInput {
  std::string_view name;
  CudaDType dtype;
  CudaSymbol extent;
};
constexpr CudaStepInput kCudaStepInputs[] = {
    {"token_ids", CudaDType::kInt32, CudaSymbol::kNumTokens},
    {"token_slots", CudaDType::kInt32, CudaSymbol::kNumTokens},  // >= 0: take what this slot sampled last instead
    {"position_ids", CudaDType::kInt32, CudaSymbol::kNumTokens},
    {"cu_seqlens", CudaDType::kInt32, CudaSymbol::kNumSeqsPlus1},
    {"past_lens", CudaDType::kInt32, CudaSymbol::kNumSeqs},
    {"logits_indices", CudaDType::kInt32, CudaSymbol::kNumLogits},
    {"sample_slots", CudaDType::kInt32, CudaSymbol::kNumLogits},  // whose parameters and state; -1: nothing is drawn
    {"sample_counter", CudaDType::kInt32, CudaSymbol::kNumLogits},
    {"block_tables", CudaDType::kInt32, CudaSymbol::kNumSeqs},
};
// Positions in kCudaStepInputs.
enum CudaInputIndex : std::uint8_t {
  kCudaTokenIds,
  kCudaTokenSlots,
  kCudaPositionIds,
  kCudaCuSeqlens,
  kCudaPastLens,
  kCudaLogitsIndices,
  kCudaSampleSlots,
  kCudaSampleCounter,
  kCudaBlockTables,
  kNumCudaStepInputs,
};
static_assert(std::size(kCudaStepInputs) == kNumCudaStepInputs);

// The position of `name` in kCudaStepInputs; -1 if it is none of them.
int cuda_step_input_index(std::string_view name);

// Throws EngineError unless all of the following hold. Symbols agree with the limits. Every tensor lies where its kind
// says: arena and state tensors inside their buffers, weights on their entry of the container (an engine without
// weights has none), inputs and caches as the step provides them. Every kernel's cubins are in the container. Whatever
// the step, every grid is one that the hardware has, every int fits, every address points into its tensor, every tensor
// map describes memory inside its tensor, and every matrix product reads and writes inside its operands.
void check_cuda_plan(const CudaPlan& plan, const Manifest& manifest, const Container& container);

// Bytes of a tensor when every symbol has its upper bound; of a cache, per block. Throws EngineError on overflow.
std::int64_t max_bytes(const CudaPlan& plan, const CudaTensor& tensor);

// How an argument lies among the kernel's parameters.
struct ParameterSize {
  std::int64_t bytes, alignment;
};
constexpr std::int64_t kMaxParameterBytes = 4096;  // of a launch
constexpr ParameterSize kPointerSize{8, 8}, kScalarSize{4, 4}, kTensorMapSize{128, 64};

// Bytes that a launch's arguments take as the kernel's parameters.
std::int64_t parameter_bytes(const LaunchInstruction& launch);

}  // namespace tl
