// y[row] = the sum over the row's slots of [share *] the sorted row that the slot's expert has computed [+
// residual[row]].
//
// Bytes: 2*N*(top_k + 1) per row. Floor: bytes / bandwidth, and latency. Only the experts' results come from the
// previous kernel; all other inputs are read before its end. Launch: TL_THREADS threads with eight features each, grid
// (rows, blocks of a row). Macros: TL_OUT (features, a multiple of 8), TL_THREADS, and those of
// grouped_linear/slot_sums.cuh.
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
