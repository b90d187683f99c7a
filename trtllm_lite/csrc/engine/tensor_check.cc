#include "engine/tensor_check.h"

#include <algorithm>

#include "engine/plan_check.h"
#include "errors.h"

namespace tl {
namespace {

[[noreturn]] void fail(const PlanTensor& tensor, const std::string& message) {
  throw EngineError("plan: tensor " + tensor.name + ": " + message);
}

std::span<const Dim> dims(const Operand& operand) { return {operand.shape, static_cast<std::size_t>(operand.rank)}; }

bool all_integers(std::span<const Dim> shape) {
  return std::ranges::none_of(shape, [](const Dim& dim) { return dim.symbol.has_value(); });
}

void check_input(const PlanTensor& tensor) {
  const int index = step_input_index(tensor.name);
  if (index < 0) fail(tensor, "expected the name of a step input");
  const StepInput& input = kStepInputs[index];
  const Operand& operand = tensor.operand;
  bool matches = operand.dtype == DType::kInt32 && operand.layout == Layout::kRowMajor && operand.rank == input.rank;
  for (int axis = 0; matches && axis < input.rank; ++axis) matches = operand.shape[axis].symbol == input.shape[axis];
  if (!matches) fail(tensor, "expected int32 with the shape of the step input of this name");
  if (tensor.offset != 0) fail(tensor, "expected offset 0, found " + std::to_string(tensor.offset));
}

void check_arena(const Plan& plan, const PlanTensor& tensor) {
  if (tensor.operand.layout != Layout::kRowMajor) fail(tensor, "expected layout row_major");
  for (const Dim& dim : dims(tensor.operand)) {
    // The number of blocks may be chosen when an executor is made, so nothing static can be sized by it.
    if (dim.symbol == StepSymbol::kNumBlocks) fail(tensor, "expected a shape without num_blocks");
  }
  if (tensor.offset % kAlignment != 0) fail(tensor, "expected an offset that is a multiple of 64");
  const std::int64_t bytes = max_bytes(plan, tensor);
  if (bytes > plan.arena_bytes || tensor.offset > plan.arena_bytes - bytes) {
    fail(tensor, "expected to lie inside the arena of " + std::to_string(plan.arena_bytes) + " bytes, found " +
                     std::to_string(bytes) + " bytes at " + std::to_string(tensor.offset));
  }
}

void check_cache(const PlanTensor& tensor) {
  const Operand& operand = tensor.operand;
  const bool matches = operand.dtype == DType::kFloat32 && operand.layout == Layout::kRowMajor && operand.rank >= 2 &&
                       operand.shape[0].symbol == StepSymbol::kNumBlocks && all_integers(dims(operand).subspan(1));
  if (!matches) fail(tensor, "expected float32 [num_blocks, integers…]");
  if (tensor.offset != 0) fail(tensor, "expected offset 0, found " + std::to_string(tensor.offset));
}

std::string_view safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "F32";
    case DType::kFloat16:
      return "F16";
    case DType::kBFloat16:
      return "BF16";
    case DType::kInt32:
      break;  // weights are floating point
  }
  return "";
}

void check_weight(const PlanTensor& tensor, const Container& container) {
  const Operand& operand = tensor.operand;
  if (!all_integers(dims(operand))) fail(tensor, "expected a shape of integers");
  const int packed_rank = operand.layout == Layout::kPanel64 ? 2 : 3;
  if (operand.layout != Layout::kRowMajor && operand.rank != packed_rank) {
    fail(tensor, "expected rank " + std::to_string(packed_rank) + " for its layout");
  }
  std::vector<std::int64_t> logical;
  for (const Dim& dim : dims(operand)) logical.push_back(dim.value);
  const StoredShape stored = stored_shape(operand.layout, logical);
  const Entry& entry = container.at("weights." + tensor.name);
  if (entry.dtype != safetensors_name(operand.dtype)) {
    fail(tensor, "expected an entry of dtype " + std::string(to_string(operand.dtype)) + ", found " + entry.dtype);
  }
  if (!std::ranges::equal(entry.shape, std::span(stored.shape, static_cast<std::size_t>(stored.rank)))) {
    fail(tensor, "expected an entry with the stored shape of its layout, found another");
  }
  if (entry.offset != tensor.offset) {
    fail(tensor, "expected the offset of its entry, " + std::to_string(entry.offset) + ", found " +
                     std::to_string(tensor.offset));
  }
}

}  // namespace

void check_tensor(const Plan& plan, const PlanTensor& tensor, const Container& container) {
  switch (tensor.kind) {
    case TensorKind::kInput:
      return check_input(tensor);
    case TensorKind::kArena:
      return check_arena(plan, tensor);
    case TensorKind::kWeight:
      return check_weight(tensor, container);
    case TensorKind::kCache:
      return check_cache(tensor);
  }
}

std::int64_t max_bytes(const Plan& plan, const PlanTensor& tensor) {
  std::int64_t bytes = item_size(tensor.operand.dtype);
  for (const Dim& dim : dims(tensor.operand)) {
    if (dim.symbol == StepSymbol::kNumBlocks) continue;
    const std::int64_t extent = dim.symbol ? plan.bound(*dim.symbol) : dim.value;
    if (__builtin_mul_overflow(bytes, extent, &bytes)) fail(tensor, "expected a size that fits in 64 bits");
  }
  return bytes;
}

}  // namespace tl
