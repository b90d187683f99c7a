// Which experts the rows of a step have chosen, as Router's kernels list them for grouped products.
//
// Macros: TL_EXPERTS, TL_TOP_K (the experts of a row).
#pragma once

#include "cuda/types.cuh"

namespace tl {

constexpr int kExperts = TL_EXPERTS, kTopK = TL_TOP_K;
constexpr int kMostListedRows = 16;  // of a step whose rows ChosenExpert lists

// Of a step of at most kMostListedRows rows, one of the experts that some row has chosen; they come by rising numbers.
struct alignas(16) ChosenExpert {
  int expert;
  u32 rows;  // a bit for each row that has chosen it
  u32 unused[2];
  unsigned char slots[kMostListedRows];  // which of the kTopK of each row it is
};

struct ChosenExperts {
  const int* list;  // their number | three unused numbers | ChosenExpert of each

  __device__ __forceinline__ int count() const { return list[0]; }
  __device__ __forceinline__ const ChosenExpert& operator[](int i) const {
    return reinterpret_cast<const ChosenExpert*>(list + 4)[i];
  }
};

// Of a larger step, rows are sorted by expert: rows `first` to `end` - 1 of those have chosen `expert`.
struct alignas(16) ExpertRows {
  int expert, first, end, unused;
};

struct ExpertRowGroups {
  const int* list;  // their number | three unused numbers | ExpertRows of each

  __device__ __forceinline__ int count() const { return list[0]; }
  __device__ __forceinline__ ExpertRows operator[](int i) const {
    return reinterpret_cast<const ExpertRows*>(list + 4)[i];
  }
};

// Where each of a row's choices is among sorted rows, [rows, kTopK]: -1 for an expert of another rank.
struct Places {
  int of_slots[kTopK];

  __device__ __forceinline__ Places(const int* places, int row) {
#pragma unroll
    for (int slot = 0; slot < kTopK; ++slot) of_slots[slot] = places[row * kTopK + slot];
  }
};

}  // namespace tl
