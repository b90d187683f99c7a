// Checks the launches and products of a GPU plan.
#pragma once

#include "engine/container.h"
#include "engine/records.h"

namespace tl {

// Throws EngineError unless every kernel's cubins are in the container and, whatever the step, every grid is one that
// the hardware has, every int fits, every address points into its tensor, every tensor map describes memory inside its
// tensor, and every product and collective reads and writes inside its operands. Tensors have passed check_tensors.
void check_launches(const Plan& plan, const Manifest& manifest, const Container& container);

// The size and alignment of an argument among a kernel's parameters.
struct ParameterSize {
  std::int64_t bytes, alignment;
};
constexpr std::int64_t kMaxParameterBytes = 4096;  // of a launch
constexpr ParameterSize kPointerSize{8, 8}, kScalarSize{4, 4}, kTensorMapSize{128, 64};

// Bytes that a launch's arguments take as the kernel's parameters.
std::int64_t parameter_bytes(const LaunchInstruction& launch);

}  // namespace tl
