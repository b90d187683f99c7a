// A pair whose queries are rows of their own, and whose new key and value are in the cache already.
//
// Macros: those of decode.cuh.
#pragma once

#include "paged_attention/decode_loader.cuh"

namespace tl {

class PairHeads : public Pair {
 public:
  static constexpr u32 kBytes = 0;

  __device__ __forceinline__ PairHeads(const DecodeArguments& a, const Team& team, const Cursor<Table>& first, char*,
                                       int lane)
      : Pair(a, team, first, lane) {}
  // Behind the previous kernel.
  template <class State>
  __device__ __forceinline__ void load(const Cursor<Table>& cursor, int left, State& state) {
    enter(cursor, left);
    state.load_query(a.rows + static_cast<u64>(cursor.pair) * kGroup * kDim, kDim, kGroup, lane);
    if (is_mine) added.load(a.key_cache, a.value_cache, row(), lane);
  }
  template <class State>
  __device__ __forceinline__ void begin(State&) {}
};

}  // namespace tl
