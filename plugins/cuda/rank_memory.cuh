// Addresses in the memory of other ranks.
#pragma once

#include "cuda/async.cuh"
#include "cuda/rank_table.cuh"

namespace tl {

// The address on rank `other` that corresponds to `own` in this rank's arena or state.
template <typename T>
__device__ __forceinline__ T* in_arena(const RankTable* ranks, T* own, int other) {
  return reinterpret_cast<T*>(reinterpret_cast<u64>(own) - ranks->arenas[ranks->rank] + ranks->arenas[other]);
}
template <typename T>
__device__ __forceinline__ T* in_state(const RankTable* ranks, T* own, int other) {
  return reinterpret_cast<T*>(reinterpret_cast<u64>(own) - ranks->states[ranks->rank] + ranks->states[other]);
}

// The address, on the rank that draws tokens, that corresponds to `own` in this rank's state.
template <typename T>
__device__ __forceinline__ T* where_drawn(const RankTable* ranks, T* own) {
  return reinterpret_cast<T*>(reinterpret_cast<u64>(own) - ranks->states[ranks->rank] + ranks->drawing);
}

}  // namespace tl
