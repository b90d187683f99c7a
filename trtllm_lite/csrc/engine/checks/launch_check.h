// Checks the launches and products of a GPU plan.
#pragma once

#include "engine/container.h"
#include "engine/records.h"

namespace tl {

// Throws EngineError unless every kernel's cubins are in the container and, in every possible step, every grid is
// within the hardware's limits, every int fits, every address points into its tensor, every tensor map describes memory
// inside its tensor, and every product and collective stays inside its operands. Tensors must have passed
// check_tensors.
void check_launches(const Plan& plan, const Manifest& manifest, const Container& container);

// The size and alignment of an argument in a kernel's parameters.
struct ParameterSize {
  std::int64_t bytes, alignment;
};
constexpr std::int64_t kMaxParameterBytes = 4096;  // parameters of a launch
constexpr ParameterSize kPointerSize{8, 8}, kScalarSize{4, 4}, kTensorMapSize{128, 64};

// The bytes of a launch's arguments as kernel parameters.
std::int64_t parameter_bytes(const LaunchInstruction& launch);

}  // namespace tl
