// Rows of x in the order of the experts that chose them, once for each of a row's experts [times its share].
//
// Bytes: 2*K*(1 + top_k) a row. Floor: bytes / bandwidth. A block a row, which is read once, before the kernel that
// sorts has ended: the row is older. Launch: TL_THREADS threads. Macros: TL_IN (features, a multiple of 8), TL_THREADS,
// TL_SHARES (0 or 1), TL_FP16, and those of cuda/chosen_experts.cuh.
#include "cuda/async.cuh"
#include "cuda/chosen_experts.cuh"

namespace tl {

__device__ __forceinline__ uint4 scaled8(uint4 elements, float factor) {
  float values[8];
  unpack8(elements, values);
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] *= factor;
  return pack8(values);
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    sort_rows(uint4* sorted, const uint4* x, const int* ids, const int* within, const int* first, const float* shares) {
  using namespace tl;
  constexpr int kVectors = TL_IN / 8, kCount = ceil_div(kVectors, TL_THREADS);
  static_assert(TL_IN % 8 == 0);
  const int row = blockIdx.x;
  uint4 elements[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector < kVectors) elements[i] = __ldcg(x + static_cast<u64>(row) * kVectors + vector);
  }
  wait_for_previous_kernel();
  allow_next_kernel();
  const SortedPlaces places{ids, within, first};
  int to[kTopK];
  float share[kTopK];
#pragma unroll
  for (int slot = 0; slot < kTopK; ++slot) {
    to[slot] = places.of(row, slot);
    share[slot] = TL_SHARES != 0 ? shares[row * kTopK + slot] : 1.0f;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
#pragma unroll
    for (int slot = 0; slot < kTopK; ++slot) {
      if (to[slot] < 0) continue;
      sorted[static_cast<u64>(to[slot]) * kVectors + vector] =
          TL_SHARES != 0 ? scaled8(elements[i], share[slot]) : elements[i];
    }
  }
}
