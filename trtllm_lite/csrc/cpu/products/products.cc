// Chooses the best unit of the instruction set for a product. Like kernels, this file is compiled once for each
// instruction set.
#include "cpu/products/products.h"

#if defined(__AMX_BF16__)
#include "cpu/products/tile_gemm.h"
#include "cpu/products/tile_groups.h"
#else
#include "cpu/products/panel_gemm.h"
#include "cpu/products/panel_groups.h"
#endif

#if defined(__AMX_BF16__)
// Products by vector instructions are those for AVX-512, which every machine with AMX has.
namespace tl::avx512 {

void multiply(const KernelArgs& args, const Tensor& x, const Tensor& x_scale, const PackedWeight& w,
              std::int64_t panels, const Epilogue& epilogue);
void multiply_groups(const KernelArgs& args, const RowGroups& x, std::int64_t depth, const PackedWeight& w,
                     std::int64_t panels, const Epilogue& epilogue);
std::int64_t most_rows_of_groups(const KernelArgs& args, std::int64_t depth, const PackedWeight& w);

}  // namespace tl::avx512

namespace tl::TL_ISA {

void multiply(const KernelArgs& args, const Tensor& x, const Tensor& x_scale, const PackedWeight& w,
              std::int64_t panels, const Epilogue& epilogue) {
  const bool is_quantized = x_scale.data != nullptr;
  if ((is_quantized || args.product_dtype == DType::kBFloat16) && tiles::can_multiply(x.shape[1], w, is_quantized)) {
    return tiles::multiply_panels(x, w, is_quantized, panels, args.pool, epilogue);
  }
  avx512::multiply(args, x, x_scale, w, panels, epilogue);
}

void multiply_groups(const KernelArgs& args, const RowGroups& x, std::int64_t depth, const PackedWeight& w,
                     std::int64_t panels, const Epilogue& epilogue) {
  if (args.product_dtype == DType::kBFloat16 && tiles::can_multiply(depth, w, false)) {
    return tiles::multiply_groups(x, depth, w, panels, args.pool, epilogue);
  }
  avx512::multiply_groups(args, x, depth, w, panels, epilogue);
}

std::int64_t most_rows_of_groups(const KernelArgs& args, std::int64_t depth, const PackedWeight& w) {
  if (args.product_dtype == DType::kBFloat16 && tiles::can_multiply(depth, w, false)) {
    return tiles::most_rows_of_groups(depth, w);
  }
  return avx512::most_rows_of_groups(args, depth, w);
}

}  // namespace tl::TL_ISA
#else
namespace tl::TL_ISA {

void multiply(const KernelArgs& args, const Tensor& x, const Tensor&, const PackedWeight& w, std::int64_t panels,
              const Epilogue& epilogue) {
  multiply_panels(x, w, panels, args.pool, epilogue);
}

void multiply_groups(const KernelArgs& args, const RowGroups& x, std::int64_t depth, const PackedWeight& w,
                     std::int64_t panels, const Epilogue& epilogue) {
  multiply_groups(x, depth, w, panels, args.pool, epilogue);
}

std::int64_t most_rows_of_groups(const KernelArgs&, std::int64_t depth, const PackedWeight& w) {
  return most_rows_of_groups(depth, w);
}

}  // namespace tl::TL_ISA
#endif
