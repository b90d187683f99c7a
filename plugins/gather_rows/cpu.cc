// GatherRows on a CPU.
#include <string.h>

#include "cpu/kernel.h"
#include "cpu/simd/simd.h"
#include "gather_rows_schema.h"
#include "host/thread_pool.h"

namespace tl::TL_ISA {

void gather_rows(const KernelArgs& args) {
  const Tensor& x = args.inputs[gather_rows::kX];
  const Tensor& indices = args.inputs[gather_rows::kIndices];
  const std::int64_t hidden = x.shape[1], num_rows = indices.shape[0];
  float* y = args.outputs[gather_rows::kY].as<float>();
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const float* row = x.as<const float>() + indices.as<const std::int32_t>()[i] * hidden;
    memcpy(y + i * hidden, row, static_cast<std::size_t>(hidden) * sizeof(float));
  }
}

}  // namespace tl::TL_ISA
