// PositionEmbedding: y[t] = x[t] + weight[position_ids[t]], 16-bit elements.
//
// Bytes: 6 * hidden a token. FLOPs: none to speak of. Floor: latency (about 2 us) for a few tokens. Launch: grid =
// tokens, up to hidden / 8 threads. Macros: TL_HIDDEN.
#include "cuda/async.cuh"

extern "C" __global__ void position_embedding(tl::u16* y, const tl::u16* x, const int* position_ids,
                                              const tl::u16* weight) {
  using namespace tl;
  static_assert(TL_HIDDEN % 8 == 0, "rows must be multiples of 16 bytes");
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = blockIdx.x, position = position_ids[row];
  const uint4* tokens = reinterpret_cast<const uint4*>(x + row * TL_HIDDEN);
  const uint4* positions = reinterpret_cast<const uint4*>(weight + position * TL_HIDDEN);
  for (int i = threadIdx.x; i < TL_HIDDEN / 8; i += blockDim.x) {
    float values[8], other[8];
    unpack8(tokens[i], values);
    unpack8(positions[i], other);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] += other[j];
    reinterpret_cast<uint4*>(y + row * TL_HIDDEN)[i] = pack8(values);
  }
}
