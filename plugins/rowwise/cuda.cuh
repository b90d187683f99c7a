// Rowwise: y = TL_EXPRESSION of rows x(0) .., vectors v(0) .. and constants c(0) .., element by element, in float32.
//
// Bytes: a row of each operand and of y. FLOPs: those of the expression. Floor: bytes / bandwidth; of few rows latency,
// about 1 us. A thread has kElements elements, all of whose operands it requests before it uses any; vectors, which are
// weights, before the previous kernel ends. Launch: grid (rows, ceil(TL_FEATURES / (kElements * TL_THREADS))),
// TL_THREADS threads. Macros: TL_EXPRESSION, TL_FEATURES, TL_AT_ONCE (elements that a load moves: 8, of which
// TL_FEATURES then is a multiple, or 1), TL_THREADS, TL_ROWS and TL_VECTORS (how many there are of x and v),
// TL_X1_PITCH (elements from a row of x(1) to the next),
// TL_FLOAT_ROWS (bit i: x(i) is float32), TL_BYTE_ROWS (bit i: x(i) are bytes), TL_FLOAT_OUT (1: y is float32),
// TL_FP16.
#include "cuda/activation.cuh"
#include "cuda/async.cuh"

namespace tl {

constexpr int kElements = 8, kAtOnce = TL_AT_ONCE;
static_assert((kAtOnce == 1 || kAtOnce == kElements) && TL_FEATURES % kAtOnce == 0);

// Calls use(i, feature) for each group of kAtOnce of the thread's elements; they are i and following ones of the
// thread, and `feature` and following ones of a row.
template <typename Use>
__device__ __forceinline__ void for_each_group(const Use& use) {
#pragma unroll
  for (int i = 0; i < kElements; i += kAtOnce) {
    const int feature = ((blockIdx.y * kElements + i) * TL_THREADS) + threadIdx.x * kAtOnce;
    if (feature < TL_FEATURES) use(i, feature);
  }
}

__device__ __forceinline__ void load_bytes(float (&to)[kElements], int i, const void* from, u64 at) {
  const auto* const bytes = static_cast<const unsigned char*>(from) + at;
  if constexpr (kAtOnce == 1) {
    to[i] = bytes[0];
  } else {
    const uint2 words = *reinterpret_cast<const uint2*>(bytes);
#pragma unroll
    for (int j = 0; j < kElements; ++j) to[j] = (j < 4 ? words.x : words.y) >> 8 * (j % 4) & 0xff;
  }
}

template <bool kFloat>
__device__ __forceinline__ void load(float (&to)[kElements], int i, const void* from, u64 at) {
  if constexpr (kAtOnce == 1) {
    to[i] = kFloat ? static_cast<const float*>(from)[at] : unpack1(static_cast<const u16*>(from)[at]);
  } else if constexpr (kFloat) {
    const float4* const halves = reinterpret_cast<const float4*>(static_cast<const float*>(from) + at);
    const float4 low = halves[0], high = halves[1];
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
  } else {
    unpack8(*reinterpret_cast<const uint4*>(static_cast<const u16*>(from) + at), to);
  }
}

__device__ __forceinline__ void store(void* y, u64 at, const float (&from)[kElements], int i) {
  if constexpr (kAtOnce == 1 && TL_FLOAT_OUT) {
    static_cast<float*>(y)[at] = from[i];
  } else if constexpr (kAtOnce == 1) {
    static_cast<u16*>(y)[at] = pack1(from[i]);
  } else if constexpr (TL_FLOAT_OUT) {
    float4* const halves = reinterpret_cast<float4*>(static_cast<float*>(y) + at);
    halves[0] = make_float4(from[0], from[1], from[2], from[3]);
    halves[1] = make_float4(from[4], from[5], from[6], from[7]);
  } else {
    *reinterpret_cast<uint4*>(static_cast<u16*>(y) + at) = pack8(from);
  }
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    rowwise(void* y, const void* x0, const void* x1, const void* x2, const void* x3, const float* v0, const float* v1,
            const float* v2, const float* v3, const float* constants) {
  using namespace tl;
  const void* const of_rows[] = {x0, x1, x2, x3};
  const float* const of_vectors[] = {v0, v1, v2, v3};
  float rows[TL_ROWS][kElements], vectors[max_of(TL_VECTORS, 1)][kElements], results[kElements];
  for_each_group([&](int i, int feature) {
#pragma unroll
    for (int n = 0; n < TL_VECTORS; ++n) load<true>(vectors[n], i, of_vectors[n], feature);
  });
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = static_cast<u64>(blockIdx.x) * TL_FEATURES, row1 = static_cast<u64>(blockIdx.x) * TL_X1_PITCH;
  for_each_group([&](int i, int feature) {
#pragma unroll
    for (int n = 0; n < TL_ROWS; ++n) {
      const u64 at = (n == 1 ? row1 : row) + feature;
      if ((TL_BYTE_ROWS >> n & 1) != 0) {
        load_bytes(rows[n], i, of_rows[n], at);
      } else if ((TL_FLOAT_ROWS >> n & 1) != 0) {
        load<true>(rows[n], i, of_rows[n], at);
      } else {
        load<false>(rows[n], i, of_rows[n], at);
      }
    }
  });
#define TL_X(n) rows[n][i]
#define TL_V(n) vectors[n][i]
#define TL_C(n) constants[n]
#pragma unroll
  for (int i = 0; i < kElements; ++i) results[i] = TL_EXPRESSION;
  for_each_group([&](int i, int feature) { store(y, row + feature, results, i); });
}
