// GroupedRmsNorm on a CPU. A group is summed in a fixed order.
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/row_tasks.h"
#include "cpu/simd/simd.h"
#include "grouped_rms_norm_schema.h"

namespace tl::TL_ISA {
namespace {

// The features of one group of a row; `gate` may be null.
struct GatedGroup {
  const float* x;
  const float* gate;
  const float* weight;
  float* y;
  std::int64_t size;
};

// `y` has x times its gate until it is known by how much to scale that.
void normalize_gated(const GatedGroup& group, float epsilon) {
  Vec sum = zero();
  for (std::int64_t i = 0; i < group.size; i += kLanes) {
    const std::int64_t count = group.size - i;
    const Vec gated = load_first(group.x + i, count) * silu(load_first(group.gate + i, count));
    store_first(group.y + i, gated, count);
    sum = fma(gated, gated, sum);
  }
  const Vec factor = broadcast(1.0f / sqrtf(reduce_add(sum) / static_cast<float>(group.size) + epsilon));
  for (std::int64_t i = 0; i < group.size; i += kLanes) {
    const std::int64_t count = group.size - i;
    const Vec normalized = load_first(group.y + i, count) * factor;
    store_first(group.y + i, normalized * load_first(group.weight + i, count), count);
  }
}

void normalize_then_gate(const GatedGroup& group, float epsilon) {
  Vec sum = zero();
  for (std::int64_t i = 0; i < group.size; i += kLanes) {
    const Vec x = load_first(group.x + i, group.size - i);
    sum = fma(x, x, sum);
  }
  const Vec factor = broadcast(1.0f / sqrtf(reduce_add(sum) / static_cast<float>(group.size) + epsilon));
  for (std::int64_t i = 0; i < group.size; i += kLanes) {
    const std::int64_t count = group.size - i;
    const Vec normalized = load_first(group.x + i, count) * factor * load_first(group.weight + i, count);
    const Vec gate = group.gate ? silu(load_first(group.gate + i, count)) : broadcast(1.0f);
    store_first(group.y + i, normalized * gate, count);
  }
}

}  // namespace

void grouped_rms_norm(const KernelArgs& args) {
  const auto* x = args.inputs[grouped_rms_norm::kX].as<const float>();
  const Tensor& gate = args.inputs[grouped_rms_norm::kGate];
  const Tensor& weight = args.inputs[grouped_rms_norm::kWeight];
  const Tensor& y = args.outputs[grouped_rms_norm::kY];
  const auto attributes = grouped_rms_norm::attributes_of(args);
  const auto epsilon = static_cast<float>(attributes.epsilon);
  const std::int64_t groups = weight.shape[0], size = weight.shape[1];
  const bool gate_first = gate.data && attributes.order == grouped_rms_norm::Order::kGateFirst;
  auto* normalize = gate_first ? normalize_gated : normalize_then_gate;
  for_each_row(args.pool, y.shape[0] * groups, size, [&](std::int64_t number) {
    const std::int64_t first = number * size, row = number / groups, in_row = number % groups * size;
    const float* gates =
        gate.data ? gate.as<const float>() + row * gate.shape[1] + attributes.gate_first + in_row : nullptr;
    const float* weights = weight.as<const float>() + in_row;
    normalize({x + first, gates, weights, y.as<float>() + first, size}, epsilon);
  });
}

}  // namespace tl::TL_ISA
