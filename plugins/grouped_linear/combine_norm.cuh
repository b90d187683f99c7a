// total[row] as grouped_linear/combine.cuh computes it, and y = total / sqrt(mean(total^2) + epsilon) * weight, as
// rms_norm/cuda.cuh computes it from the stored `total`.
//
// Bytes: 2*N*(top_k + 3) per row. Floor: bytes / bandwidth, and the latency of one kernel instead of two. Only the
// experts' results come from the previous kernel; all other inputs are read before its end. One block per row, which
// stays in registers. Launch: grid = rows, TL_THREADS threads. Macros: those of grouped_linear/slot_sums.cuh and
// cuda/norm_row.cuh.
#include "cuda/norm_row.cuh"
#include "grouped_linear/slot_sums.cuh"

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    combine_norm(void* y, float* row_scales, uint4* total, const uint4* sorted, const int* places, const float* shares,
                 const uint4* residual, const float* weight, float epsilon, float y_scale) {
  using namespace tl;
  allow_next_kernel();
  const u64 row = static_cast<u64>(blockIdx.x) * kVectors;
  const SlotSums sums(places, shares, blockIdx.x);
  const NormWeight weights(weight);
  uint4 seen[kCount] = {};
  if (TL_RESIDUAL != 0) for_each_vector([&](int i, int vector) { seen[i] = __ldcg(residual + row + vector); });
  wait_for_previous_kernel();
  for_each_vector([&](int i, int vector) {
    seen[i] = sums.of(sorted, vector, kVectors, seen[i]);
    total[row + vector] = seen[i];
  });
  norm_row(seen, weights, blockIdx.x, {y, row_scales, epsilon, y_scale});
}
