// Chooses the best unit of the instruction set for a product. Like kernels, this file is compiled once for each
// instruction set.
#include "cpu/products/products.h"

#include "cpu/products/panel_gemm.h"
#include "cpu/products/panel_groups.h"
#if defined(__AMX_BF16__)
#include "cpu/products/tile_gemm.h"
#include "cpu/products/tile_groups.h"
#endif

namespace tl::TL_ISA {

void multiply(const KernelArgs& args, const Tensor& x, const Tensor& x_scale, const PackedWeight& w,
              std::int64_t panels, const Epilogue& epilogue) {
#if defined(__AMX_BF16__)
  const bool is_quantized = x_scale.data != nullptr;
  if ((is_quantized || args.product_dtype == DType::kBFloat16) && tiles::can_multiply(x.shape[1], w, is_quantized)) {
    return tiles::multiply_panels(x, w, is_quantized, panels, args.pool, epilogue);
  }
#endif
  static_cast<void>(x_scale);
  multiply_panels(x, w, panels, args.pool, epilogue);
}

void multiply_groups(const KernelArgs& args, const RowGroups& x, std::int64_t depth, const PackedWeight& w,
                     std::int64_t panels, const Epilogue& epilogue) {
#if defined(__AMX_BF16__)
  if (args.product_dtype == DType::kBFloat16 && tiles::can_multiply(depth, w, false)) {
    return tiles::multiply_groups(x, depth, w, panels, args.pool, epilogue);
  }
#endif
  multiply_groups(x, depth, w, panels, args.pool, epilogue);
}

std::int64_t most_rows_of_groups(const KernelArgs& args, std::int64_t depth, const PackedWeight& w) {
#if defined(__AMX_BF16__)
  if (args.product_dtype == DType::kBFloat16 && tiles::can_multiply(depth, w, false)) {
    return tiles::most_rows_of_groups(depth, w);
  }
#endif
  static_cast<void>(args);
  return most_rows_of_groups(depth, w);
}

}  // namespace tl::TL_ISA
