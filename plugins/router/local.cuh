// The experts that a rank has.
//
// Macros: TL_LOCAL_EXPERTS (experts of a rank: all, or a contiguous range), TL_MOE_TP (ranks among which each expert is
// divided), and those of cuda/chosen_experts.cuh.
#pragma once

#include "cuda/chosen_experts.cuh"
#include "cuda/rank_table.cuh"

namespace tl {

constexpr int kLocalExperts = TL_LOCAL_EXPERTS;

// The first of this rank's experts. `ranks`, which no kernel writes, is not read if a rank has all experts.
__device__ __forceinline__ int first_local(const RankTable* ranks) {
  if constexpr (kLocalExperts == kExperts) return 0;
  return static_cast<int>(ranks->rank) / TL_MOE_TP * kLocalExperts;
}

// The index of an expert among those of this rank, which begin with `first`; -1 if another rank has it.
__device__ __forceinline__ int local_number(int expert, int first) {
  if constexpr (kLocalExperts == kExperts) return expert;
  const int local = expert - first;
  return local >= 0 && local < kLocalExperts ? local : -1;
}

}  // namespace tl
