// y[row] = the sum over slots of [share *] the sorted row that the row's expert of that slot has made [+
// residual[row]].
//
// Bytes: 2*N*(top_k + 1) a row. Floor: bytes / bandwidth. A block a row; sums are float32, by slots, rounded once.
// Places and shares are older than the kernel before, and read before it has ended.
// Launch: TL_THREADS threads. Macros: TL_OUT (features, a multiple of 8), TL_THREADS, TL_RESIDUAL and TL_SHARES (0 or
// 1), TL_FP16, and those of cuda/chosen_experts.cuh.
#include "cuda/async.cuh"
#include "cuda/chosen_experts.cuh"

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    combine(uint4* y, const uint4* sorted, const int* ids, const int* within, const int* first, const float* shares,
            const uint4* residual) {
  using namespace tl;
  constexpr int kVectors = TL_OUT / 8;
  static_assert(TL_OUT % 8 == 0);
  const SortedPlaces places{ids, within, first};
  const int row = blockIdx.x;
  int from[kTopK];
  float share[kTopK];
#pragma unroll
  for (int slot = 0; slot < kTopK; ++slot) {
    from[slot] = places.of(row, slot);
    share[slot] = TL_SHARES != 0 ? shares[row * kTopK + slot] : 1.0f;
  }
  wait_for_previous_kernel();
  allow_next_kernel();
  for (int i = threadIdx.x; i < kVectors; i += TL_THREADS) {
    float sums[8] = {};
    const u64 at = static_cast<u64>(row) * kVectors + i;
    if constexpr (TL_RESIDUAL != 0) unpack8(__ldcg(residual + at), sums);
#pragma unroll
    for (int slot = 0; slot < kTopK; ++slot) {
      if (from[slot] < 0) continue;
      float values[8];
      unpack8(__ldcg(sorted + static_cast<u64>(from[slot]) * kVectors + i), values);
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[j] += share[slot] * values[j];
    }
    y[at] = pack8(sums);
  }
}
