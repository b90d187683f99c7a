// Where a product stores its rows: on this rank, or in the memory of other ranks, so that what follows finds them
// there.
//
// Macros: TL_ROWS_ON says on which rank: 0: on this one, rows of TL_OUT elements; 1: row r on rank r % TL_RANKS, which
// adds up what all ranks have stored there, [TL_RANKS][TL_RANK_ROWS][TL_OUT] in its state; 2: on the first rank of the
// stage, in its arena, beside those of the other ranks, rows of TL_ROW_FEATURES elements.
#pragma once

#include "cuda/rank_memory.cuh"

namespace tl {

struct PeerRows {
#if TL_ROWS_ON == 2
  static constexpr int kStride = TL_ROW_FEATURES;  // elements from row to row
#else
  static constexpr int kStride = TL_OUT;
#endif
  void* y;
  const RankTable* ranks;

  // The place of a row's first element.
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

  // How many of the TL_OUT elements are stored.
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
