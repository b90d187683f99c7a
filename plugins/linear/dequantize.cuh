// weight[n][k] = bytes[n][k] * scale[n] as 16-bit elements, for products of many rows, which a library or a tiled kernel
// computes.
//
// Bytes: 3 * N * K. Floor: those over the memory bandwidth. Launch: TL_THREADS threads, sixteen elements each.
// Macros: TL_IN (elements of a row, a multiple of 16), TL_THREADS.
#include "cuda/async.cuh"

// The bytes of a row lie in the order of the layout mma_k16: of each sixteen elements 0 1 8 9, 2 3 10 11, 4 5 12 13,
// 6 7 14 15.
extern "C" __global__ void dequantize(tl::u16* weight, const tl::u32* bytes, const float* scale, int rows) {
  tl::wait_for_previous_kernel();
  tl::allow_next_kernel();
  constexpr int kPieces = TL_IN / 16;
  const tl::u64 piece = static_cast<tl::u64>(blockIdx.x) * TL_THREADS + threadIdx.x;
  const int row = static_cast<int>(piece / kPieces);
  if (row >= rows) return;
  const float factor = scale[row];
  const uint4 words = reinterpret_cast<const uint4*>(bytes)[piece];
  const tl::u32 quads[4] = {words.x, words.y, words.z, words.w};
  float values[2][8];
#pragma unroll
  for (int quad = 0; quad < 4; ++quad) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto value = static_cast<signed char>(quads[quad] >> 8 * i & 0xff);
      values[i / 2][quad * 2 + i % 2] = factor * static_cast<float>(value);
    }
  }
  uint4* to = reinterpret_cast<uint4*>(weight) + piece * 2;
  to[0] = tl::pack8(values[0]);
  to[1] = tl::pack8(values[1]);
}
