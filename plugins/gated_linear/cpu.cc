// GatedLinear on a CPU. A weight panel holds 32 gate features and the corresponding 32 up features.
#include "cpu/products/products.h"
#include "cpu/simd/activation.h"
#include "gated_linear_schema.h"

namespace tl::TL_ISA {

void gated_linear(const KernelArgs& args) {
  constexpr int kHalf = kPanelWidth / 2;
  const Tensor& weight = args.inputs[gated_linear::kWeight];
  const Tensor& x_scales = args.inputs[gated_linear::kXScale];
  const float* x_scale = x_scales.as<const float>();
  const float* bias = args.inputs[gated_linear::kBias].as<const float>();
  const float* added = args.adapters ? args.inputs[gated_linear::kAdded].as<const float>() : nullptr;
  float* y = args.outputs[gated_linear::kY].as<float>();
  const auto activation = gated_linear::attributes_of(args).activation;
  const std::int64_t features = weight.shape[1];
  const auto finish = [=](const float* sums, std::int64_t row, std::int64_t panel) {
    const Vec row_scale = broadcast(x_scale ? x_scale[row] : 1.0f);
    const std::int64_t first = panel * kHalf, last = min(first + kHalf, features);
    for (std::int64_t n = first; n < last; n += kLanes, sums += kLanes) {
      Vec gate = load(sums) * row_scale, up = load(sums + kHalf) * row_scale;
      if (bias) {
        gate = gate + load_first(bias + n, last - n);
        up = up + load_first(bias + features + n, last - n);
      }
      if (added) {
        const float* both = added + row * features * 2 + n;
        gate = gate + load_first(both, last - n);
        up = up + load_first(both + features, last - n);
      }
      store_first(y + row * features + n, activate(activation, gate) * up, last - n);
    }
  };
  const PackedWeight packed{weight, args.inputs[gated_linear::kWeightScale], args.inputs[gated_linear::kWeightOffset]};
  multiply(args, args.inputs[gated_linear::kX], x_scales, packed, ceil_div(features, kHalf), Epilogue(finish));
}

}  // namespace tl::TL_ISA
