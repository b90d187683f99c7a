// GroupedLinear on a CPU: Linear for the rows of each expert in turn, added to the rows' results so far.
#include <string.h>

#include "cpu/products/experts.h"
#include "cpu/products/products.h"
#include "grouped_linear_schema.h"

namespace tl::TL_ISA {

void grouped_linear(const KernelArgs& args) {
  const Tensor& x = args.inputs[grouped_linear::kX];
  const Tensor& weight = args.inputs[grouped_linear::kWeight];
  const Tensor& ids = args.inputs[grouped_linear::kIds];
  const std::int64_t first = args.rank / grouped_linear::attributes_of(args).moe_tp_size * weight.shape[0];
  const auto* shares = args.inputs[grouped_linear::kShares].as<const float>();
  const std::int64_t features = weight.shape[1], top_k = ids.shape[1];
  float* y = args.outputs[grouped_linear::kY].as<float>();
  memset(y, 0, static_cast<std::size_t>(ids.shape[0] * features) * sizeof(float));
  const auto* biases = args.inputs[grouped_linear::kBias].as<const float>();
  const PackedWeight packed{weight, args.inputs[grouped_linear::kWeightScale],
                            args.inputs[grouped_linear::kWeightOffset]};
  const Experts experts{ids,
                        packed,
                        ceil_div(features, kPanelWidth),
                        args.outputs[grouped_linear::kGathered],
                        args.outputs[grouped_linear::kMembers],
                        first};
  const auto finish = [&](const float* sums, std::int64_t member, std::int64_t panel) {
    const float* bias = biases ? biases + experts.expert_of(member) * features : nullptr;
    const Vec share = broadcast(shares ? shares[member] : 1.0f);
    float* to = y + member / top_k * features;
    const std::int64_t begin = panel * kPanelWidth, last = min(begin + kPanelWidth, features);
    for (std::int64_t n = begin; n < last; n += kLanes, sums += kLanes) {
      const Vec result = bias ? load(sums) + load_first(bias + n, last - n) : load(sums);
      store_first(to + n, fma(share, result, load_first(to + n, last - n)), last - n);
    }
  };
  experts.multiply_each(args, [&](std::int32_t member) { return x.as<const float>() + member * x.shape[2]; }, finish);
}

}  // namespace tl::TL_ISA
