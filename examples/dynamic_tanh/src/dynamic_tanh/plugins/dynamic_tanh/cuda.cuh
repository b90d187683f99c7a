// DynamicTanh: y = tanh(alpha * x) * weight + bias.
//
// Bytes: 4 * hidden a row. Floor: bytes / bandwidth; of few rows latency, about 2 us. One block a row, eight elements a
// thread at a time. Launch: grid = rows, TL_THREADS threads. Macros: TL_HIDDEN (a multiple of 8), TL_THREADS, TL_FP16.
#include "cuda/async.cuh"

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    dynamic_tanh(uint4* y, const uint4* x, const float* alpha, const float* weight, const float* bias) {
  using namespace tl;
  static_assert(TL_HIDDEN % 8 == 0);
  constexpr int kVectors = TL_HIDDEN / 8;
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = static_cast<u64>(blockIdx.x) * kVectors;
  for (int i = threadIdx.x; i < kVectors; i += TL_THREADS) {
    float values[8];
    unpack8(x[row + i], values);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = tanhf(*alpha * values[j]) * weight[i * 8 + j] + bias[i * 8 + j];
    y[row + i] = pack8(values);
  }
}
