// The experts that a rank has.
//
// Macros: TL_LOCAL_EXPERTS (experts of a rank: all, or a contiguous range), TL_MOE_TP (ranks among which each expert is
// divided), and those of cuda/chosen_experts.cuh.
#pragma once

#include "cuda/chosen_experts.cuh"
#include "cuda/rank_table.cuh"

namespace tl {

constexpr int kLocalExperts = TL_LOCAL_EXPERTS;

// The index of an expert among those of this rank; -1 if another rank has it. `ranks` is not read if a rank has all
// experts.
__device__ __forceinline__ int local_number(int expert, const RankTable* ranks) {
  if constexpr (kLocalExperts == kExperts) return expert;
  const int local = expert - static_cast<int>(ranks->rank) / TL_MOE_TP * kLocalExperts;
  return local >= 0 && local < kLocalExperts ? local : -1;
}

}  // namespace tl
