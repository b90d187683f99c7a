// Copies of matrix tiles by the copy engine (TMA, sm_90 and up): one thread requests a box of 64 columns, which arrives
// in the shared memory of one or more blocks of the cluster in the layout that wgmma reads (see cuda/wgmma.cuh).
#pragma once

#include "cuda/async.cuh"
#include "cuda/cluster.cuh"

namespace tl {

// The driver's encoding of a matrix in global memory (CUtensorMap): a kernel parameter that must not be copied.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Weights that are read once are evicted from L2 first; those that other blocks read again are cached normally.
__device__ __forceinline__ u64 cache_policy(bool read_once) {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return read_once ? evict_first_policy() : policy;
}

// Copies the box from `row` and `column` on to `target`, and counts on barrier `full`, at the same addresses of every
// block whose bit is set in `blocks`. Called by one thread. Columns and rows outside the matrix arrive as zeros.
template <bool kSeveral>
__device__ __forceinline__ void copy_box(u32 target, const TensorMap& map, int row, int column, u32 full, u16 blocks,
                                         u64 policy) {
  if constexpr (kSeveral) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(target),
        "l"(&map), "r"(column), "r"(row), "r"(full), "h"(blocks), "l"(policy)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1, {%2, %3}], [%4], %5;" ::"r"(target),
        "l"(&map), "r"(column), "r"(row), "r"(full), "l"(policy)
        : "memory");
  }
}

__device__ __forceinline__ void store_of_block(u32 address, const float (&values)[4]) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(values[0]), "f"(values[1]),
               "f"(values[2]), "f"(values[3])
               : "memory");
}

}  // namespace tl
