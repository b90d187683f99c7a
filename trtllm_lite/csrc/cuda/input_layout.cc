#include "cuda/input_layout.h"

namespace tl::cuda {
namespace {

constexpr std::size_t kInputAlignment = 64;

}  // namespace

InputLayout::InputLayout(const CudaExtents& extents, std::int64_t table_columns) {
  for (std::size_t i = 0; i < kNumCudaStepInputs; ++i) {
    const CudaStepInput& input = kCudaStepInputs[i];
    offsets[i] = bytes;
    const std::int64_t columns = i == kCudaBlockTables ? table_columns : 1;
    const std::int64_t size = extents[input.extent] * columns * item_size(input.dtype);
    bytes += (static_cast<std::size_t>(size) + kInputAlignment - 1) / kInputAlignment * kInputAlignment;
  }
}

}  // namespace tl::cuda
