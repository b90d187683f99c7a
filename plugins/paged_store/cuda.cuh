// PagedStore: stores row i of x in the place of token indices[i] in a paged cache, or of token i if `indices` is null.
// Elements have 16 bits; slots[t] is the place of token t: block * tokens per block + offset.
//
// Bytes: 4 * hidden per row. FLOPs: none. Floor: latency, about 2 us, for a few rows; 67 MB, 15 us for 4096 rows of
// 4096 features. Launch: grid = rows, up to hidden / 8 threads. Macros: TL_HIDDEN.
#include "cuda/async.cuh"

extern "C" __global__ void paged_store(tl::u16* cache, const tl::u16* x, const int* slots, const int* indices) {
  tl::wait_for_previous_kernel();
  tl::allow_next_kernel();
  static_assert(TL_HIDDEN % 8 == 0, "rows must be multiples of 16 bytes");
  const tl::u64 row = blockIdx.x;
  const tl::u64 slot = slots[indices == nullptr ? blockIdx.x : indices[row]];
  const uint4* from = reinterpret_cast<const uint4*>(x + row * TL_HIDDEN);
  uint4* to = reinterpret_cast<uint4*>(cache + slot * TL_HIDDEN);
  for (int i = threadIdx.x; i < TL_HIDDEN / 8; i += blockDim.x) to[i] = from[i];
}
