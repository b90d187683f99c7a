// Linear on a CPU: the panel product, then row scales, bias and activation.
#include "cpu/products/products.h"
#include "cpu/simd/activation.h"
#include "linear_schema.h"

namespace tl::TL_ISA {

void linear(const KernelArgs& args) {
  const Tensor& weight = args.inputs[linear::kWeight];
  const Tensor& x_scales = args.inputs[linear::kXScale];
  const float* x_scale = x_scales.as<const float>();
  const float* bias = args.inputs[linear::kBias].as<const float>();
  const float* added = args.adapters ? args.inputs[linear::kAdded].as<const float>() : nullptr;
  float* y = args.outputs[linear::kY].as<float>();
  const auto activation = linear::attributes_of(args).activation;
  const std::int64_t features = weight.shape[0];
  const auto finish = [=](const float* sums, std::int64_t row, std::int64_t panel) {
    const Vec row_scale = broadcast(x_scale ? x_scale[row] : 1.0f);
    const std::int64_t first = panel * kPanelWidth, last = min(first + kPanelWidth, features);
    for (std::int64_t n = first; n < last; n += kLanes, sums += kLanes) {
      Vec offset = bias ? load_first(bias + n, last - n) : zero();
      if (added) offset = offset + load_first(added + row * features + n, last - n);
      store_first(y + row * features + n, activate(activation, load(sums) * row_scale + offset), last - n);
    }
  };
  const PackedWeight packed{weight, args.inputs[linear::kWeightScale], args.inputs[linear::kWeightOffset]};
  multiply(args, args.inputs[linear::kX], x_scales, packed, ceil_div(features, kPanelWidth), Epilogue(finish));
}

}  // namespace tl::TL_ISA
