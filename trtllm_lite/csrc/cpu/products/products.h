// The product of activations and a weight in panels of 64 features (plugins/README.md), for Linear and GatedLinear.
#pragma once

#include <cstdint>

#include "cpu/kernel.h"
#include "cpu/products/row_groups.h"
#include "cpu/simd/simd.h"

// Types are common to all instruction sets, so that one can use the products of another. Their functions are inlined,
// or are templates of a type that belongs to one instruction set.
namespace tl {

constexpr int kPanelWidth = 64;

// The operands that make up a product's weight; absent ones have no data.
struct PackedWeight {
  const Tensor& weight;
  const Tensor& scale;
  const Tensor& offset;
};

// What an operator does with finished sums: use(sums of 64 features, row, panel). It is called through a pointer, once
// for all sums of a task, so that products are compiled once for all operators. Borrows `use`.
class Epilogue {
 public:
  template <typename Use>
  explicit Epilogue(const Use& use) : use_(&use), apply_(apply<Use>) {}

  // Handles the sums of `rows` rows and `panels` panels, from the given ones on: [panels][rows][64].
  TL_INLINE void operator()(const float* sums, std::int64_t row, std::int64_t rows, std::int64_t panel,
                            std::int64_t panels) const {
    apply_(use_, sums, row, rows, panel, panels);
  }

 private:
  template <typename Use>
  static void apply(const void* use, const float* sums, std::int64_t row, std::int64_t rows, std::int64_t panel,
                    std::int64_t panels) {
    for (std::int64_t p = panel; p < panel + panels; ++p) {
      for (std::int64_t r = row; r < row + rows; ++r, sums += kPanelWidth) {
        (*static_cast<const Use*>(use))(sums, r, p);
      }
    }
  }

  const void* use_;
  void (*apply_)(const void*, const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t);
};

}  // namespace tl

namespace tl::TL_ISA {

// Calls `epilogue` for all rows of x and all `panels` panels of w. Quantized rows (with x_scale) are integers or E4M3,
// which bfloat16 holds exactly. Other rows are rounded to bfloat16, or to fixed point for 4-bit weights, if the
// engine's products have that type and the instruction set has a unit for it.
void multiply(const KernelArgs& args, const Tensor& x, const Tensor& x_scale, const PackedWeight& w,
              std::int64_t panels, const Epilogue& epilogue);

// Like multiply, for all rows of groups, of `depth` elements, with bit-equal results. Each group has its own `panels`
// panels in w. `epilogue` counts rows over all groups, and panels within a group's. For any row and panel, one thread
// calls it, group after group.
void multiply_groups(const KernelArgs& args, const RowGroups& x, std::int64_t depth, const PackedWeight& w,
                     std::int64_t panels, const Epilogue& epilogue);

// The most rows that groups may have in total; at least those of two groups.
std::int64_t most_rows_of_groups(const KernelArgs& args, std::int64_t depth, const PackedWeight& w);

}  // namespace tl::TL_ISA
