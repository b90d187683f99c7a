// Copies rows of x in the order of experts, once for each of a row's experts [times its share].
//
// Bytes: 2*K*(1 + top_k) per row. Floor: bytes / bandwidth, and latency: the previous kernel writes the places. It does
// not write x, which is therefore read before its end. A thread has eight features. Launch: TL_THREADS threads, grid
// (rows, blocks of a row). Macros: TL_IN (features, a multiple of 8), TL_THREADS, TL_SHARES (0 or 1), TL_FP16, and
// those of cuda/chosen_experts.cuh.
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
    sort_rows(uint4* sorted, const uint4* x, const int* places, const float* shares) {
  using namespace tl;
  constexpr int kVectors = TL_IN / 8;
  static_assert(TL_IN % 8 == 0);
  const int row = blockIdx.x, vector = blockIdx.y * TL_THREADS + threadIdx.x;
  const bool exists = vector < kVectors;
  const uint4 elements = exists ? __ldcg(x + static_cast<u64>(row) * kVectors + vector) : make_uint4(0, 0, 0, 0);
  wait_for_previous_kernel();
  allow_next_kernel();
  if (!exists) return;
  const Places to(places, row);
  float share[kTopK];
#pragma unroll
  for (int slot = 0; slot < kTopK; ++slot) share[slot] = TL_SHARES != 0 ? shares[row * kTopK + slot] : 1.0f;
#pragma unroll
  for (int slot = 0; slot < kTopK; ++slot) {
    const int place = to.of_slots[slot];
    if (place < 0) continue;
    sorted[static_cast<u64>(place) * kVectors + vector] = TL_SHARES != 0 ? scaled8(elements, share[slot]) : elements;
  }
}
