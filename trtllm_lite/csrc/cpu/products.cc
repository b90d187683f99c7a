// The product by the best unit of the instruction set that allows what is asked. As kernels, this file is compiled once
// for each instruction set.
#include "cpu/products.h"

#include "cpu/panel_gemm.h"
#if defined(__AMX_BF16__)
#include "cpu/tile_gemm.h"
#endif

namespace tl::TL_ISA {

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
