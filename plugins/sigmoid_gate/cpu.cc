// SigmoidGate on a CPU.
#include "cpu/kernel.h"
#include "cpu/row_tasks.h"
#include "cpu/simd/simd.h"
#include "sigmoid_gate_schema.h"

namespace tl::TL_ISA {
namespace {

float dot(const float* a, const float* b, std::int64_t size) {
  Vec sum = zero();
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) sum = fma(load(a + i), load(b + i), sum);
  if (i < size) sum = fma(load_first(a + i, size - i), load_first(b + i, size - i), sum);
  return reduce_add(sum);
}

}  // namespace

void sigmoid_gate(const KernelArgs& args) {
  const Tensor& x = args.inputs[sigmoid_gate::kX];
  const Tensor& values = args.inputs[sigmoid_gate::kValues];
  const auto* weight = args.inputs[sigmoid_gate::kWeight].as<const float>();
  auto* y = args.outputs[sigmoid_gate::kY].as<float>();
  const std::int64_t depth = x.shape[1], features = values.shape[1];
  for_each_row(args.pool, x.shape[0], depth + features, [&](std::int64_t row) {
    const Vec logit = broadcast(dot(x.as<const float>() + row * depth, weight, depth));
    const Vec factor = broadcast(1.0f) / (broadcast(1.0f) + exp(zero() - logit));
    const float* from = values.as<const float>() + row * features;
    float* to = y + row * features;
    for (std::int64_t n = 0; n < features; n += kLanes) {
      store_first(to + n, load_first(from + n, features - n) * factor, features - n);
    }
  });
}

}  // namespace tl::TL_ISA
