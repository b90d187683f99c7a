// y[row] = the sum over slots of [share *] the sorted row that the row's expert of that slot has made [+
// residual[row]].
//
// Bytes: 2*N*(top_k + 1) a row. Floor: bytes / bandwidth, and latency. A thread has eight features, whose results of
// all slots it asks for at once; sums are float32, by slots, rounded once. All but results is older than the kernel
// before, and read before it has ended. Launch: TL_THREADS threads, grid (rows, blocks of a row). Macros: TL_OUT
// (features, a multiple of 8), TL_THREADS, TL_RESIDUAL and TL_SHARES (0 or 1), TL_FP16, and those of
// cuda/chosen_experts.cuh.
#include "cuda/async.cuh"
#include "cuda/chosen_experts.cuh"

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    combine(uint4* y, const uint4* sorted, const int* places, const float* shares, const uint4* residual) {
  using namespace tl;
  allow_next_kernel();
  constexpr int kVectors = TL_OUT / 8;
  static_assert(TL_OUT % 8 == 0);
  const int row = blockIdx.x, vector = blockIdx.y * TL_THREADS + threadIdx.x;
  const u64 at = static_cast<u64>(row) * kVectors + vector;
  const bool exists = vector < kVectors;
  const Places from(places, row);
  float share[kTopK];
#pragma unroll
  for (int slot = 0; slot < kTopK; ++slot) share[slot] = TL_SHARES != 0 ? shares[row * kTopK + slot] : 1.0f;
  float sums[8] = {};
  if (TL_RESIDUAL != 0 && exists) unpack8(__ldcg(residual + at), sums);
  wait_for_previous_kernel();
  if (!exists) return;
  uint4 results[kTopK];
#pragma unroll
  for (int slot = 0; slot < kTopK; ++slot) {
    const int place = max_of(from.of_slots[slot], 0);  // some row, of which nothing is used, in place of none
    results[slot] = __ldcg(sorted + static_cast<u64>(place) * kVectors + vector);
  }
#pragma unroll
  for (int slot = 0; slot < kTopK; ++slot) {
    if (from.of_slots[slot] < 0) continue;
    float values[8];
    unpack8(results[slot], values);
#pragma unroll
    for (int j = 0; j < 8; ++j) sums[j] += share[slot] * values[j];
  }
  y[at] = pack8(sums);
}
