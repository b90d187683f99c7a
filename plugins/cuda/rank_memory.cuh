// Where other ranks have in their memory what this one has.
#pragma once

#include "cuda/async.cuh"
#include "cuda/rank_table.cuh"

namespace tl {

// What another rank has where this one has `own`, in its arena or its state.
template <typename T>
__device__ __forceinline__ T* in_arena(const RankTable* ranks, T* own, int other) {
  return reinterpret_cast<T*>(reinterpret_cast<u64>(own) - ranks->arenas[ranks->rank] + ranks->arenas[other]);
}
template <typename T>
__device__ __forceinline__ T* in_state(const RankTable* ranks, T* own, int other) {
  return reinterpret_cast<T*>(reinterpret_cast<u64>(own) - ranks->states[ranks->rank] + ranks->states[other]);
}

// What the rank that draws tokens has where this one has `own` in its state.
template <typename T>
__device__ __forceinline__ T* where_drawn(const RankTable* ranks, T* own) {
  return reinterpret_cast<T*>(reinterpret_cast<u64>(own) - ranks->states[ranks->rank] + ranks->drawing);
}

}  // namespace tl
