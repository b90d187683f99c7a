// Where a product stores its rows: in this rank's memory or in that of other ranks, where the next operator reads them.
//
// TL_ROWS_ON selects the rank. 0: this rank; rows of TL_OUT elements. 1: row r goes to rank r % TL_RANKS, which adds up
// the rows of all ranks, [TL_RANKS][TL_RANK_ROWS][TL_OUT] in its state. 2: the first rank of the stage; its arena has
// rows of TL_ROW_FEATURES elements, in which each rank has its columns.
#pragma once

#include "cuda/rank_memory.cuh"

namespace tl {

struct PeerRows {
#if TL_ROWS_ON == 2
  static constexpr int kStride = TL_ROW_FEATURES;  // elements between rows
#else
  static constexpr int kStride = TL_OUT;
#endif
  void* y;
  const RankTable* ranks;

  // The address of a row's first element.
  template <typename T>
  __device__ __forceinline__ T* row(int number) const {
    T* const own = static_cast<T*>(y);
#if TL_ROWS_ON == 1
    const u64 place = ranks->rank * TL_RANK_ROWS + number / TL_RANKS;
    return in_state(ranks, own, number % TL_RANKS) + place * kStride;
#elif TL_ROWS_ON == 2
    return in_arena(ranks, own, 0) + static_cast<u64>(number) * kStride + ranks->rank * TL_OUT;
#else
    return own + static_cast<u64>(number) * kStride;
#endif
  }

  // How many of the TL_OUT columns are stored.
  __device__ __forceinline__ int columns() const {
#if TL_ROWS_ON == 2
    const int left = kStride - static_cast<int>(ranks->rank) * TL_OUT;
    return left < TL_OUT ? left : TL_OUT;
#else
    return TL_OUT;
#endif
  }
};

}  // namespace tl
