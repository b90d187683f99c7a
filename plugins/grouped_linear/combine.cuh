// y[row] = the sum over slots of [share *] the sorted row that the row's expert of that slot has made [+
// residual[row]].
//
// Bytes: 2*N*(top_k + 1) a row. Floor: bytes / bandwidth, and latency. All but results is older than the kernel before,
// and read before it has ended. Launch: TL_THREADS threads, of eight features each, grid (rows, blocks of a row).
// Macros: TL_OUT (features, a multiple of 8), TL_THREADS, and those of grouped_linear/slot_sums.cuh.
#include "grouped_linear/slot_sums.cuh"

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    combine(uint4* y, const uint4* sorted, const int* places, const float* shares, const uint4* residual) {
  using namespace tl;
  allow_next_kernel();
  constexpr int kVectors = TL_OUT / 8;
  static_assert(TL_OUT % 8 == 0);
  const int row = blockIdx.x, vector = blockIdx.y * TL_THREADS + threadIdx.x;
  const u64 at = static_cast<u64>(row) * kVectors + vector;
  const bool exists = vector < kVectors;
  const SlotSums sums(places, shares, row);
  uint4 added = make_uint4(0, 0, 0, 0);
  if (TL_RESIDUAL != 0 && exists) added = __ldcg(residual + at);
  wait_for_previous_kernel();
  if (exists) y[at] = sums.of(sorted, vector, kVectors, added);
}
