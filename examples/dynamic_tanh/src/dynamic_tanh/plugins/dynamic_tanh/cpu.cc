// DynamicTanh on a CPU.
#include "cpu/kernel.h"
#include "cpu/row_tasks.h"
#include "cpu/simd/simd.h"
#include "dynamic_tanh_schema.h"

namespace tl::TL_ISA {

void dynamic_tanh(const KernelArgs& args) {
  const Tensor& x = args.inputs[dynamic_tanh::kX];
  const Vec alpha = broadcast(*args.inputs[dynamic_tanh::kAlpha].as<const float>());
  const auto* weight = args.inputs[dynamic_tanh::kWeight].as<const float>();
  const auto* bias = args.inputs[dynamic_tanh::kBias].as<const float>();
  const std::int64_t hidden = x.shape[1];
  for_each_row(args.pool, x.shape[0], hidden, [&](std::int64_t row) {
    const float* from = x.as<const float>() + row * hidden;
    float* to = args.outputs[dynamic_tanh::kY].as<float>() + row * hidden;
    for (std::int64_t i = 0; i < hidden; i += kLanes) {
      const std::int64_t count = hidden - i;
      const Vec squashed = tanh(alpha * load_first(from + i, count));
      store_first(to + i, fma(squashed, load_first(weight + i, count), load_first(bias + i, count)), count);
    }
  });
}

}  // namespace tl::TL_ISA
