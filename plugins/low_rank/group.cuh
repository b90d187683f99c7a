// The rows of a step that have the same adapter, and what the kernels of LowRank have in common.
//
// `rows` lists the rows ordered by adapter slot, rows without an adapter last; `ends[slot]` is the end of a slot's rows
// in the list. Rows are processed in tiles of 16, the rows of a tensor core product.
#pragma once

#include "cuda/async.cuh"

namespace tl {

constexpr int kWarps = TL_THREADS / 32, kTileRows = 16;
constexpr int kColumns = TL_PARTS * TL_MAX_RANK;  // sums of a row for all parts of the product

struct RowGroup {
  const int* rows;
  int first, last;

  __device__ __forceinline__ RowGroup(const int* all, const int* ends, int slot, int num_slots, int num_rows)
      : rows(all), first(slot == 0 ? 0 : ends[slot - 1]), last(slot < num_slots ? ends[slot] : num_rows) {}
  // The row at place `at` of the list; -1 past the end of the group.
  __device__ __forceinline__ int row(int at) const { return at < last ? rows[at] : -1; }
};

// The matrix of a slot, given that of the first slot. `stride`: units of 256 bytes from one slot to the next.
template <typename T>
__device__ __forceinline__ const T* of_slot(const T* first, int slot, int stride) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + static_cast<u64>(slot) * stride * 256u);
}

__device__ __forceinline__ uint4 no_vector() { return make_uint4(0, 0, 0, 0); }

}  // namespace tl
