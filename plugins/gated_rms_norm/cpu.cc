// GatedRmsNorm on a CPU. A group is summed in a fixed order.
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/row_tasks.h"
#include "cpu/simd/simd.h"
#include "gated_rms_norm_schema.h"

namespace tl::TL_ISA {
namespace {

struct Group {
  const float* x;
  const float* gate;
  float* y;
  std::int64_t size;
};

TL_INLINE Vec sigmoid(Vec x) { return broadcast(1.0f) / (broadcast(1.0f) + exp(zero() - x)); }

void normalize(const Group& group, const float* weight, float epsilon, gated_rms_norm::Activation activation) {
  Vec sum = zero();
  for (std::int64_t i = 0; i < group.size; i += kLanes) {
    const Vec x = load_first(group.x + i, group.size - i);
    sum = fma(x, x, sum);
  }
  const Vec factor = broadcast(1.0f / sqrtf(reduce_add(sum) / static_cast<float>(group.size) + epsilon));
  for (std::int64_t i = 0; i < group.size; i += kLanes) {
    const std::int64_t count = group.size - i;
    const Vec normalized = load_first(group.x + i, count) * factor * load_first(weight + i, count);
    const Vec gate = load_first(group.gate + i, count);
    const bool is_silu = activation == gated_rms_norm::Activation::kSilu;
    store_first(group.y + i, normalized * (is_silu ? silu(gate) : sigmoid(gate)), count);
  }
}

}  // namespace

void gated_rms_norm(const KernelArgs& args) {
  const auto* x = args.inputs[gated_rms_norm::kX].as<const float>();
  const Tensor& gate = args.inputs[gated_rms_norm::kGate];
  const Tensor& weight = args.inputs[gated_rms_norm::kWeight];
  const Tensor& y = args.outputs[gated_rms_norm::kY];
  const gated_rms_norm::Attributes attributes = gated_rms_norm::attributes_of(args);
  const std::int64_t size = weight.shape[0], groups = y.shape[1] / size;  // of a row
  const float* gates = gate.as<const float>() + attributes.gate_first;
  for_each_row(args.pool, y.shape[0] * groups, size, [&](std::int64_t number) {
    const std::int64_t first = number * size, of_gate = number / groups * gate.shape[1] + number % groups * size;
    normalize({x + first, gates + of_gate, y.as<float>() + first, size}, weight.as<const float>(),
              static_cast<float>(attributes.epsilon), attributes.activation);
  });
}

}  // namespace tl::TL_ISA
