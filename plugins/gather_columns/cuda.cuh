// GatherColumns: y[t, i] = x[t, order[i]], for 16-bit elements or, if x is logits, 32-bit ones.
//
// Bytes: those of x and y, and 4 * columns of the order. FLOPs: none. Floor: latency, about 2 us; rows are read from
// the L2 cache, where the kernel that wrote them has left them. Launch: grid = rows x parts of a row of y. Macros:
// TL_FEATURES (of x), TL_COLUMNS (of y), TL_ITEM_BYTES (2 or 4), TL_THREADS.
#include "cuda/async.cuh"

namespace tl {

template <int kBytes>
struct ItemOf {
  using Type = u16;
};
template <>
struct ItemOf<4> {
  using Type = u32;
};
using Item = ItemOf<TL_ITEM_BYTES>::Type;
static_assert(sizeof(Item) == TL_ITEM_BYTES);

}  // namespace tl

extern "C" __global__ void gather_columns(tl::Item* y, const tl::Item* x, const int* order) {
  const int i = blockIdx.y * TL_THREADS + threadIdx.x;
  const int from = i < TL_COLUMNS ? order[i] : 0;
  tl::wait_for_previous_kernel();
  tl::allow_next_kernel();
  const tl::u64 row = blockIdx.x;
  if (i < TL_COLUMNS) y[row * TL_COLUMNS + i] = x[row * TL_FEATURES + from];
}
