// GatherColumns: y[t, i] = x[t, order[i]], 16-bit elements.
//
// Bytes: 4 * features a row, and 4 * features of the order. FLOPs: none. Floor: latency, about 2 us; rows of a prompt
// are read from the second-level cache, where what wrote them has left them. Launch: grid = rows x parts of a row.
// Macros: TL_FEATURES, TL_THREADS.
#include "cuda/async.cuh"

extern "C" __global__ void gather_columns(tl::u16* y, const tl::u16* x, const int* order) {
  const int i = blockIdx.y * TL_THREADS + threadIdx.x;
  const int from = i < TL_FEATURES ? order[i] : 0;
  tl::wait_for_previous_kernel();
  tl::allow_next_kernel();
  const tl::u64 row = static_cast<tl::u64>(blockIdx.x) * TL_FEATURES;
  if (i < TL_FEATURES) y[row + i] = x[row + from];
}
