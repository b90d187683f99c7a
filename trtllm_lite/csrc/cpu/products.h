// The product of activations and a weight in panels, by the best unit of the instruction set that allows what is asked.
#pragma once

#include "cpu/panel_gemm.h"
#if defined(__AMX_BF16__)
#include "cpu/tile_gemm.h"
#endif

namespace tl::TL_ISA {

// Calls epilogue(sums of 64 features, row, panel) for all rows of x and all panels of w. Rows that were quantized
// (x_scale is given) are whole numbers or E4M3, which bfloat16 holds exactly; others are rounded to bfloat16, or to
// fixed point for weights of 4 bits, where the engine's products are of that type and the instruction set has a unit
// for them.
template <typename Epilogue>
void multiply(const KernelArgs& args, const Tensor& x, const Tensor& x_scale, const PackedWeight& w,
              std::int64_t panels, const Epilogue& epilogue) {
#if defined(__AMX_BF16__)
  const bool is_quantized = x_scale.data != nullptr;
  if ((is_quantized || args.product_dtype == DType::kBFloat16) && tiles::can_multiply(x, w, is_quantized)) {
    return tiles::multiply_panels(x, w, is_quantized, panels, args.pool, epilogue);
  }
#endif
  static_cast<void>(x_scale);
  multiply_panels(x, w, panels, args.pool, epilogue);
}

}  // namespace tl::TL_ISA
