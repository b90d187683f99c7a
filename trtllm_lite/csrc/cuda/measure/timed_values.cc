#include "cuda/measure/timed_values.h"

#include <algorithm>
#include <set>
#include <variant>

#include "engine/checks/plan_check.h"

namespace tl::cuda {
namespace {

// The type of activations: that of the plan's first 16-bit intermediate value.
DType activation_dtype(const Plan& plan) {
  const auto found = std::ranges::find_if(plan.tensors, [](const PlanTensor& tensor) {
    return tensor.kind == TensorKind::kArena && item_size(tensor.dtype) == 2;
  });
  return found == plan.tensors.end() ? DType::kBFloat16 : found->dtype;
}

// The tensors of the plan that a program's kernels take.
std::set<std::size_t> tensors_of(const Program& program) {
  std::set<std::size_t> found;
  for (const Instruction& instruction : program.instructions) {
    const auto* launch = std::get_if<LaunchInstruction>(&instruction);
    if (launch == nullptr) continue;
    for (const LaunchArgument& argument : launch->args) {
      const auto* pointer = std::get_if<TensorArgument>(&argument);
      const auto* map = std::get_if<TensorMapArgument>(&argument);
      if (pointer != nullptr) found.insert(static_cast<std::size_t>(pointer->tensor));
      if (map != nullptr) found.insert(static_cast<std::size_t>(map->tensor_map.tensor));
    }
  }
  return found;
}

}  // namespace

void TimedValues::fill(const DeviceBuffer& arena, Stream stream) {
  of(activation_dtype(plan_), 1.0f, stream).fill(arena.address(), arena.size(), stream);
}

void TimedValues::fill_bytes(const Program& program, const Addresses& addresses, Stream stream) {
  for (const std::size_t index : tensors_of(program)) {
    const PlanTensor& tensor = plan_.tensors[index];
    if (tensor.kind != TensorKind::kArena || item_size(tensor.dtype) != 1) continue;
    const auto bytes = static_cast<std::size_t>(max_bytes(plan_, tensor));
    of(tensor.dtype, kMadeUpDeviation, stream).fill(addresses[index], bytes, stream);
  }
}

const RandomValues& TimedValues::of(DType dtype, float deviation, Stream stream) {
  return values_.try_emplace(dtype, device_, dtype, Layout::kRowMajor, deviation, stream).first->second;
}

}  // namespace tl::cuda
