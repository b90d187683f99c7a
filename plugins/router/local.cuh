// The experts that a rank has, of all that a router chooses of.
//
// Macros: TL_LOCAL_EXPERTS (those of a rank: all, or neighbours), TL_MOE_TP (ranks that share out each expert), and
// those of cuda/chosen_experts.cuh.
#pragma once

#include "cuda/chosen_experts.cuh"
#include "cuda/rank_table.cuh"

namespace tl {

constexpr int kLocalExperts = TL_LOCAL_EXPERTS;

// The number of an expert among those of this rank; -1 of another rank's. `ranks` is not read where a rank has all.
__device__ __forceinline__ int local_number(int expert, const RankTable* ranks) {
  if constexpr (kLocalExperts == kExperts) return expert;
  const int local = expert - static_cast<int>(ranks->rank) / TL_MOE_TP * kLocalExperts;
  return local >= 0 && local < kLocalExperts ? local : -1;
}

}  // namespace tl
