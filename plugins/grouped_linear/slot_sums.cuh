// Sums, over the slots of a row, the results of the slots' experts [times the shares of the slots].
//
// A thread loads eight features of all slots at once. Sums are float32, in order of slots, rounded once. Macros:
// TL_RESIDUAL and TL_SHARES (0 or 1), TL_FP16, and those of cuda/chosen_experts.cuh.
#pragma once

#include "cuda/async.cuh"
#include "cuda/chosen_experts.cuh"

namespace tl {

// The places and shares of a row, which were written before the previous kernel.
struct SlotSums {
  Places from;
  float share[kTopK];

  __device__ __forceinline__ SlotSums(const int* places, const float* shares, int row) : from(places, row) {
#pragma unroll
    for (int slot = 0; slot < kTopK; ++slot) share[slot] = TL_SHARES != 0 ? shares[row * kTopK + slot] : 1.0f;
  }
  // `residual` plus the sum over all slots of vector `vector` of the slots' rows, which have `vectors` vectors each.
  __device__ __forceinline__ uint4 of(const uint4* sorted, int vector, int vectors, uint4 residual) const {
    uint4 results[kTopK];
    float sums[8] = {}, values[8];
#pragma unroll
    for (int slot = 0; slot < kTopK; ++slot) {
      const int place = max_of(from.of_slots[slot], 0);  // a missing slot loads row 0, which is not used
      results[slot] = __ldcg(sorted + static_cast<u64>(place) * vectors + vector);
    }
    if constexpr (TL_RESIDUAL != 0) unpack8(residual, sums);
#pragma unroll
    for (int slot = 0; slot < kTopK; ++slot) {
      if (from.of_slots[slot] < 0) continue;
      unpack8(results[slot], values);
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[j] += share[slot] * values[j];
    }
    return pack8(sums);
  }
};

}  // namespace tl
