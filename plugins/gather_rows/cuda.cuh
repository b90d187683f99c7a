// GatherRows: y[i] = x[indices[i]], 16-bit elements: the rows whose logits are wanted.
//
// Bytes: 4 * hidden a row. FLOPs: none. Floor: latency, about 2 us. Launch: grid = rows, up to hidden / 8 threads.
// Macros: TL_HIDDEN.
#include "cuda/gather.cuh"

extern "C" __global__ void gather_rows(tl::u16* y, const tl::u16* x, const int* indices) {
  tl::wait_for_previous_kernel();
  tl::allow_next_kernel();
  const tl::u64 row = blockIdx.x;
  tl::copy_row<TL_HIDDEN>(y + row * TL_HIDDEN, x + static_cast<tl::u64>(indices[row]) * TL_HIDDEN);
}
