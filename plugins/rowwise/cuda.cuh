// Rowwise: y = TL_EXPRESSION of rows x(0) .., vectors v(0) .. and constants c(0) .., element by element, in float32.
//
// Bytes: a row of each operand and of y. FLOPs: those of the expression. Floor: bytes / bandwidth; elements move one at
// a time, so that features need no alignment: the price of an operator without a kernel of its own. Launch: grid (rows,
// ceil(TL_FEATURES / (kElements * TL_THREADS))), TL_THREADS threads. Macros: TL_EXPRESSION, TL_FEATURES, TL_THREADS,
// TL_FLOAT_ROWS (bit i: x(i) is float32), TL_FLOAT_OUT (1: y is float32).
#include "cuda/activation.cuh"
#include "cuda/async.cuh"

namespace tl {

constexpr int kElements = 4;  // elements per thread

template <bool kFloat>
__device__ __forceinline__ float element(const void* rows, u64 at) {
  if constexpr (kFloat) return static_cast<const float*>(rows)[at];
  return unpack1(static_cast<const u16*>(rows)[at]);
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    rowwise(void* y, const void* x0, const void* x1, const void* x2, const void* x3, const float* v0, const float* v1,
            const float* v2, const float* v3, const float* constants) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int feature = (blockIdx.y * kElements + i) * TL_THREADS + threadIdx.x;
    if (feature >= TL_FEATURES) break;
    const u64 at = static_cast<u64>(blockIdx.x) * TL_FEATURES + feature;
#define TL_X(n) element<(TL_FLOAT_ROWS >> n & 1) != 0>(x##n, at)
#define TL_V(n) v##n[feature]
#define TL_C(n) constants[n]
    const float result = TL_EXPRESSION;
    if (TL_FLOAT_OUT) {
      static_cast<float*>(y)[at] = result;
    } else {
      static_cast<u16*>(y)[at] = pack1(result);
    }
  }
}
