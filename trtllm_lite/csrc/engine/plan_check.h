// What makes a plan safe to execute, checked once when the engine is loaded, so that no kernel has to.
#pragma once

#include <iterator>
#include <string_view>
#include <vector>

#include "engine/container.h"
#include "engine/manifest.h"
#include "engine/plan.h"

namespace tl {

// Values of step input `input` (a position in kStepInputs) stay below `bound`, for some operator indexes with them.
struct ValueBound {
  int input = 0;
  Dim bound;
  bool operator==(const ValueBound&) const = default;
};

// The six inputs of a step: what each is called and its shape. All are int32.
struct StepInput {
  std::string_view name;
  int rank;
  StepSymbol shape[2];
};
constexpr StepInput kStepInputs[] = {
    {"token_ids", 1, {StepSymbol::kNumTokens}},
    {"position_ids", 1, {StepSymbol::kNumTokens}},
    {"cu_seqlens", 1, {StepSymbol::kNumSeqsPlus1}},
    {"past_lens", 1, {StepSymbol::kNumSeqs}},
    {"block_tables", 2, {StepSymbol::kNumSeqs, StepSymbol::kMaxBlocksPerSeq}},
    {"logits_indices", 1, {StepSymbol::kNumLogits}},
};
// Positions in kStepInputs.
enum StepInputIndex { kTokenIds, kPositionIds, kCuSeqlens, kPastLens, kBlockTables, kLogitsIndices, kNumStepInputs };
static_assert(std::size(kStepInputs) == kNumStepInputs);

// The position of `name` in kStepInputs; -1 if it is none of them.
int step_input_index(std::string_view name);

// Throws EngineError unless all of the following hold. Symbols agree with the limits. Every tensor lies where its kind
// says: arena tensors inside the arena, weights exactly on their entry of the container, inputs and caches as the step
// provides them. Every call satisfies its operator's schema, is given the step inputs that the schema asks for, reads
// nothing that was not written before or has been overwritten since, and writes to arena tensors that overlap none of
// its other operands, or in place where the schema says so. Returns the bounds on the values of step inputs.
std::vector<ValueBound> check_plan(const Plan& plan, const Manifest& manifest, const Container& container);

// Bytes of a tensor when every step symbol has its upper bound; of a cache, per block. Throws EngineError on overflow.
std::int64_t max_bytes(const Plan& plan, const PlanTensor& tensor);

}  // namespace tl
