// RoPE (rotate-half) of the queries and keys of packed rows: a row of x has values after them, which y leaves out.
//
// Bytes: 8 * heads * head_dim a row, and its cosines and sines once for each head, from the L1 cache. FLOPs: 3
// an element. Floor: bytes / bandwidth. Launch: grid = rows, TL_THREADS threads, two elements of each half at a time.
// Macros: TL_HEADS, TL_HEAD_DIM, TL_HALF_DIM (even), TL_THREADS.
#include "cuda/async.cuh"

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    rotate(tl::u16* y, const tl::u16* x, const float* cos, const float* sin) {
  using namespace tl;
  constexpr int kHeads = 2 * TL_HEADS, kPairs = TL_HALF_DIM / 2, kRest = (TL_HEAD_DIM - 2 * TL_HALF_DIM) / 2;
  static_assert(TL_HALF_DIM % 2 == 0 && TL_HEAD_DIM % 2 == 0 && kRest >= 0);
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = blockIdx.x;
  const u32* from = reinterpret_cast<const u32*>(x + row * (3 * TL_HEADS * TL_HEAD_DIM));
  u32* to = reinterpret_cast<u32*>(y + row * (kHeads * TL_HEAD_DIM));
  const float2* cosines = reinterpret_cast<const float2*>(cos + row * TL_HALF_DIM);
  const float2* sines = reinterpret_cast<const float2*>(sin + row * TL_HALF_DIM);
  for (int i = threadIdx.x; i < kHeads * kPairs; i += TL_THREADS) {
    const int head = i / kPairs * (TL_HEAD_DIM / 2), pair = i % kPairs;
    const float2 low = unpack2(from[head + pair]), high = unpack2(from[head + kPairs + pair]);
    const float2 c = cosines[pair], s = sines[pair];
    to[head + pair] = pack2(low.x * c.x - high.x * s.x, low.y * c.y - high.y * s.y);
    to[head + kPairs + pair] = pack2(high.x * c.x + low.x * s.x, high.y * c.y + low.y * s.y);
  }
  for (int i = threadIdx.x; i < kHeads * kRest; i += TL_THREADS) {
    const int at = i / max_of(kRest, 1) * (TL_HEAD_DIM / 2) + TL_HALF_DIM + i % max_of(kRest, 1);
    to[at] = from[at];
  }
}
