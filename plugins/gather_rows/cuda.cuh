// GatherRows: y[i] = x[indices[i]], 16-bit elements: the rows whose logits are wanted.
//
// Bytes: 4 * hidden a row. FLOPs: none. Floor: latency, about 2 us. Launch: grid = rows, up to hidden / 8 threads.
// Macros: TL_HIDDEN.
#include "cuda/async.cuh"

extern "C" __global__ void gather_rows(tl::u16* y, const tl::u16* x, const int* indices) {
  tl::wait_for_previous_kernel();
  tl::allow_next_kernel();
  static_assert(TL_HIDDEN % 8 == 0, "rows must be multiples of 16 bytes");
  const tl::u64 row = blockIdx.x;
  const uint4* from = reinterpret_cast<const uint4*>(x + static_cast<tl::u64>(indices[row]) * TL_HIDDEN);
  uint4* to = reinterpret_cast<uint4*>(y + row * TL_HIDDEN);
  for (int i = threadIdx.x; i < TL_HIDDEN / 8; i += blockDim.x) to[i] = from[i];
}
