// Pooling: a row for each sequence, the mean of its rows or the first of them, divided by its norm if TL_L2 is 1. The
// row is float32 if TL_FLOAT_OUT is 1, and of 16 bits like x if a head reads it.
//
// Bytes: 2 * hidden per token for means, per sequence for first rows. FLOPs: 1 a byte. Floor: bytes / bandwidth, if
// there are at least as many sequences as SMs. A block takes a sequence, and groups of its threads take every
// kGroups-th row; their sums are added in order. Launch: grid = sequences, TL_THREADS threads. Macros: TL_HIDDEN (a
// multiple of 8, at most 8 * TL_THREADS), TL_THREADS (a multiple of 32), TL_MEAN, TL_L2, TL_FLOAT_OUT,
// TL_FP16.
#include "cuda/block_sum.cuh"

namespace tl {

constexpr int kVectors = TL_HIDDEN / 8, kGroups = TL_THREADS / kVectors;
static_assert(TL_HIDDEN % 8 == 0 && kGroups >= 1 && TL_THREADS % 32 == 0);

// Gives all threads of group 0 the sums over all groups.
__device__ __forceinline__ void add_groups(float (&values)[8], int group, int vector) {
  constexpr int kPitch = 9;  // words for eight elements, to avoid bank conflicts
  __shared__ float sums[kGroups * kVectors * kPitch];
  float* mine = sums + (group * kVectors + vector) * kPitch;
  if (group < kGroups) {
#pragma unroll
    for (int j = 0; j < 8; ++j) mine[j] = values[j];
  }
  __syncthreads();
  if (group != 0) return;
  for (int other = 1; other < kGroups; ++other) {
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] += mine[other * kVectors * kPitch + j];
  }
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS) pooling(void* y, const tl::u16* x, const int* cu_seqlens) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  const int group = threadIdx.x / kVectors, vector = threadIdx.x % kVectors;
  const int first = cu_seqlens[blockIdx.x], count = TL_MEAN ? cu_seqlens[blockIdx.x + 1] - first : 1;
  float values[8] = {};
  for (int row = group; row < count && group < kGroups; row += kGroups) {
    float own[8];
    unpack8(reinterpret_cast<const uint4*>(x)[static_cast<u64>(first + row) * kVectors + vector], own);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] += own[j];
  }
  if (kGroups > 1) add_groups(values, group, vector);
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    values[j] /= static_cast<float>(count);
    if (group == 0) squares += values[j] * values[j];
  }
  float factor = 1.0f;
  if (TL_L2) {
    const float total = block_sum<0>(squares);
    if (total > 0.0f) factor = rsqrtf(total);
  }
  if (group != 0) return;
#pragma unroll
  for (int j = 0; j < 8; ++j) values[j] *= factor;
  const u64 to = static_cast<u64>(blockIdx.x) * kVectors + vector;
  if (!TL_FLOAT_OUT) {
    static_cast<uint4*>(y)[to] = pack8(values);
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) static_cast<float*>(y)[to * 8 + j] = values[j];
}
