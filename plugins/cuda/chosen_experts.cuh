// Which experts the rows of a step have chosen: lists that Router's kernels write for products of rows sorted by
// expert. A step of a few rows has lists in shared memory instead (router/chosen_list.cuh).
//
// Macros: TL_EXPERTS, TL_TOP_K (experts per row).
#pragma once

#include "cuda/types.cuh"

namespace tl {

constexpr int kExperts = TL_EXPERTS, kTopK = TL_TOP_K;

// A group of rows that are sorted by expert: rows `first` to `end` - 1 have chosen `expert`.
struct alignas(16) ExpertRows {
  int expert, first, end, unused;
};

struct ExpertRowGroups {
  const int* list;  // count | three unused ints | that many ExpertRows

  __device__ __forceinline__ int count() const { return list[0]; }
  __device__ __forceinline__ ExpertRows operator[](int i) const {
    return reinterpret_cast<const ExpertRows*>(list + 4)[i];
  }
};

// For each choice of a row, its place among the sorted rows, [rows, kTopK]; -1 for an expert of another rank.
struct Places {
  int of_slots[kTopK];

  __device__ __forceinline__ Places(const int* places, int row) {
#pragma unroll
    for (int slot = 0; slot < kTopK; ++slot) of_slots[slot] = places[row * kTopK + slot];
  }
};

}  // namespace tl
