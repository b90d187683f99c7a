// GroupedLinear on a CPU: Linear of the rows of one expert after the other, each added to what the row has already.
#include <string.h>

#include "cpu/experts.h"
#include "cpu/products.h"
#include "grouped_linear_schema.h"

namespace tl::TL_ISA {

void grouped_linear(const KernelArgs& args) {
  const Tensor& x = args.inputs[grouped_linear::kX];
  const Tensor& weight = args.inputs[grouped_linear::kWeight];
  const Tensor& ids = args.inputs[grouped_linear::kIds];
  const std::int64_t first = args.rank / grouped_linear::attributes_of(args).moe_tp_size * weight.shape[0];
  const auto* shares = args.inputs[grouped_linear::kShares].as<const float>();
  const std::int64_t features = weight.shape[1], top_k = ids.shape[1];
  const auto* members = args.outputs[grouped_linear::kMembers].as<const std::int32_t>();
  float* y = args.outputs[grouped_linear::kY].as<float>();
  memset(y, 0, static_cast<std::size_t>(ids.shape[0] * features) * sizeof(float));
  const auto* biases = args.inputs[grouped_linear::kBias].as<const float>();
  const auto finish_of = [=](std::int64_t expert) {
    const float* bias = biases ? biases + expert * features : nullptr;
    return [=](const float* sums, std::int64_t member, std::int64_t panel) {
      const Vec share = broadcast(shares[members[member]]);
      float* to = y + members[member] / top_k * features;
      const std::int64_t first = panel * kPanelWidth, last = min(first + kPanelWidth, features);
      for (std::int64_t n = first; n < last; n += kLanes, sums += kLanes) {
        const Vec result = bias ? load(sums) + load_first(bias + n, last - n) : load(sums);
        store_first(to + n, fma(share, result, load_first(to + n, last - n)), last - n);
      }
    };
  };
  const PackedWeight packed{weight, args.inputs[grouped_linear::kWeightScale],
                            args.inputs[grouped_linear::kWeightOffset]};
  const Experts experts{ids,
                        packed,
                        ceil_div(features, kPanelWidth),
                        args.outputs[grouped_linear::kGathered],
                        args.outputs[grouped_linear::kMembers],
                        first};
  experts.multiply_each(
      args, [&](std::int32_t member) { return x.as<const float>() + member * x.shape[2]; }, finish_of);
}

}  // namespace tl::TL_ISA
