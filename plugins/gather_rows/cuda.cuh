// GatherRows: y[i] = x[indices[i]], 16-bit elements: the rows whose logits are wanted.
//
// Bytes: 4 * hidden a row. FLOPs: none. Floor: latency, about 2 us. Launch: grid = rows, up to hidden / 8 threads.
// Macros: TL_HIDDEN.
#include "cuda/gather.cuh"

extern "C" __global__ void gather_rows(tl::u16* y, const tl::u16* x, const int* indices) {
  tl::gather_row<TL_HIDDEN>(y, x, indices);
}
