// GroupedGatedLinear on a CPU: GatedLinear for the rows of each expert in turn.
#include "cpu/products/experts.h"
#include "cpu/products/products.h"
#include "cpu/simd/activation.h"
#include "grouped_gated_linear_schema.h"

namespace tl::TL_ISA {

void grouped_gated_linear(const KernelArgs& args) {
  constexpr int kHalf = kPanelWidth / 2;
  const Tensor& x = args.inputs[grouped_gated_linear::kX];
  const Tensor& weight = args.inputs[grouped_gated_linear::kWeight];
  const Tensor& ids = args.inputs[grouped_gated_linear::kIds];
  const auto [activation, moe_tp_size, self_gated] = grouped_gated_linear::attributes_of(args);
  const std::int64_t first = args.rank / moe_tp_size * weight.shape[0];
  const std::int64_t features = weight.shape[2], top_k = ids.shape[1];
  float* y = args.outputs[grouped_gated_linear::kY].as<float>();
  const auto* biases = args.inputs[grouped_gated_linear::kBias].as<const float>();
  const auto* shares = args.inputs[grouped_gated_linear::kInputShares].as<const float>();
  const PackedWeight packed{weight, args.inputs[grouped_gated_linear::kWeightScale],
                            args.inputs[grouped_gated_linear::kWeightOffset]};
  const Experts experts{ids,
                        packed,
                        ceil_div(features, kHalf),
                        args.outputs[grouped_gated_linear::kGathered],
                        args.outputs[grouped_gated_linear::kMembers],
                        first};
  const auto finish = [&](const float* sums, std::int64_t member, std::int64_t panel) {
    float* to = y + member * features * (1 + self_gated);
    const float* bias = biases ? biases + experts.expert_of(member) * 2 * features : nullptr;
    const Vec share = broadcast(shares ? shares[member] : 1.0f);
    const std::int64_t begin = panel * kHalf, last = min(begin + kHalf, features);
    for (std::int64_t n = begin; n < last; n += kLanes, sums += kLanes) {
      Vec gate = load(sums) * share, up = load(sums + kHalf) * share;
      if (bias) {
        gate = gate + load_first(bias + n, last - n);
        up = up + load_first(bias + features + n, last - n);
      }
      if (self_gated) {
        store_first(to + n, gated(activation, gate, gate), last - n);
        store_first(to + features + n, gated(activation, up, up), last - n);
      } else {
        store_first(to + n, gated(activation, gate, up), last - n);
      }
    }
  };
  experts.multiply_each(
      args, [&](std::int32_t member) { return x.as<const float>() + member / top_k * x.shape[1]; }, finish);
}

}  // namespace tl::TL_ISA
