// Computes activation(g) * u after a product that computed both, for any number of tokens: y[t][i] =
// activation(x[t][i]) * x[t][TL_OUT + i]. (For a few tokens, cuda.cuh does this in the product's epilogue.)
//
// Bytes: 6 * TL_OUT per token. FLOPs: a few per byte. Floor: bytes / bandwidth (2048 tokens of 14336: 176 MB, 41 us at
// the 4.26 TB/s of a copy). Launch: grid (tokens, ceil(TL_OUT / (16 * TL_THREADS))), TL_THREADS threads: a thread has
// 16 elements. Rows are processed backwards, with the blocks of a row side by side: what the product wrote last is
// still in the L2 cache. Macros: TL_OUT, TL_THREADS, TL_ACTIVATION (cuda/activation.cuh).
#include "cuda/activation.cuh"
#include "cuda/async.cuh"

extern "C" __global__ void __launch_bounds__(TL_THREADS) gate_mul(tl::u16* y, const tl::u16* x) {
  using namespace tl;
  constexpr int kVectors = TL_OUT / 8, kCount = 2;
  static_assert(TL_OUT % 8 == 0, "features must be a multiple of 8");
  wait_for_previous_kernel();
  allow_next_kernel();
  const int block = blockIdx.y * gridDim.x + blockIdx.x, parts = gridDim.y;
  const u64 row = gridDim.x - 1 - block / parts;
  const uint4* gates = reinterpret_cast<const uint4*>(x) + row * 2 * kVectors;
  const int first = block % parts * TL_THREADS * kCount + threadIdx.x;
  uint4 raw[kCount][2];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = first + i * TL_THREADS;
    if (vector >= kVectors) break;
    raw[i][0] = __ldcs(gates + vector);
    raw[i][1] = __ldcs(gates + kVectors + vector);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = first + i * TL_THREADS;
    if (vector >= kVectors) break;
    float gate[8], up[8];
    unpack8(raw[i][0], gate);
    unpack8(raw[i][1], up);
#pragma unroll
    for (int j = 0; j < 8; ++j) gate[j] = activate<TL_ACTIVATION>(gate[j]) * up[j];
    reinterpret_cast<uint4*>(y)[row * kVectors + vector] = pack8(gate);
  }
}
