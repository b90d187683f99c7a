// SigmoidGate: y[row] = values[row] * sigmoid(x[row] . weight).
//
// Bytes: 2 * (in + 2 * features) a row. Floor: bytes / bandwidth; of few rows latency, about 2 us. One block a row;
// sums are float32. Launch: grid = rows, TL_THREADS threads. Macros: TL_IN, TL_OUT (multiples of 8), TL_THREADS (a
// multiple of 32), TL_FP16.
#include "cuda/block_sum.cuh"

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    sigmoid_gate(uint4* y, const uint4* x, const float* weight, const uint4* values) {
  using namespace tl;
  constexpr int kIn = TL_IN / 8, kOut = TL_OUT / 8;
  static_assert(TL_IN % 8 == 0 && TL_OUT % 8 == 0 && TL_THREADS % 32 == 0);
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = blockIdx.x;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < kIn; i += TL_THREADS) {
    float elements[8];
    unpack8(__ldcg(x + row * kIn + i), elements);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += elements[j] * weight[i * 8 + j];
  }
  const float factor = 1.0f / (1.0f + __expf(-block_sum<0>(sum)));
  for (int i = threadIdx.x; i < kOut; i += TL_THREADS) {
    float elements[8];
    unpack8(__ldcg(values + row * kOut + i), elements);
#pragma unroll
    for (int j = 0; j < 8; ++j) elements[j] *= factor;
    y[row * kOut + i] = pack8(elements);
  }
}
