#include "executor/step_output.h"

#include "errors.h"

namespace tl {

OutputPlace find_output(const Plan& plan, const Extents& step, const std::string& name, const RowSlice& slice) {
  const auto found = plan.outputs.find(name);
  const PlanTensor* tensor =
      found == plan.outputs.end() ? nullptr : &plan.tensors[static_cast<std::size_t>(found->second)];
  if (tensor == nullptr || tensor->kind != TensorKind::kArena) {
    throw ArgumentError("output: expected one that the engine's plan has, found " + name);
  }
  const Dim& extent = tensor->shape[0];
  const std::int64_t rows = extent.symbol ? step[*extent.symbol] : extent.value;
  const std::int64_t row_bytes = (tensor->shape.size() > 1 ? tensor->shape[1].value : 1) * item_size(tensor->dtype);
  const std::int64_t end = slice.end.value_or(rows);
  if (slice.begin < 0 || end < slice.begin || end > rows) {
    throw LimitError("output " + name + ": expected rows among the " + std::to_string(rows) +
                     " of the last step, found " + std::to_string(slice.begin) + " to " + std::to_string(end));
  }
  return {tensor->offset + slice.begin * row_bytes, end - slice.begin, row_bytes};
}

}  // namespace tl
