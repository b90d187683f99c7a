// MergeRows: y[i] = x[i * n], …, x[i * n + n - 1], one after the other, for 16-bit elements. Rows of x lie in a row, so
// that y has the same elements in the same order.
//
// Bytes: 4 * elements, mostly from L2. FLOPs: none. Floor: latency, about 2 us. Launch: grid = rows of y x parts of
// TL_THREADS vectors of 16 bytes. Macros: TL_VECTORS (of a row of y), TL_THREADS.
#include "cuda/async.cuh"

extern "C" __global__ void merge_rows(uint4* y, const uint4* x) {
  const int i = blockIdx.y * TL_THREADS + threadIdx.x;
  tl::wait_for_previous_kernel();
  tl::allow_next_kernel();
  const tl::u64 at = static_cast<tl::u64>(blockIdx.x) * TL_VECTORS + i;
  if (i < TL_VECTORS) y[at] = x[at];
}
