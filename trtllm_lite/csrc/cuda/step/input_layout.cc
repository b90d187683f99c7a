#include "cuda/step/input_layout.h"

namespace tl::cuda {
namespace {

constexpr std::size_t kInputAlignment = 64;

}  // namespace

InputLayout::InputLayout(const Extents& extents, std::int64_t table_columns, std::int64_t token_row_bytes) {
  for (std::size_t i = 0; i < kNumStepInputs; ++i) {
    const StepInput& input = kStepInputs[i];
    offsets[i] = bytes;
    const std::int64_t columns = i == kBlockTables ? table_columns : 1;
    const std::int64_t row_bytes = input.rows ? token_row_bytes : columns * item_size(DType::kInt32);
    const std::int64_t size = extents[input.shape[0]] * row_bytes;
    bytes += (static_cast<std::size_t>(size) + kInputAlignment - 1) / kInputAlignment * kInputAlignment;
  }
}

}  // namespace tl::cuda
