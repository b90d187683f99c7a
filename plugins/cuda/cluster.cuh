// Clusters (sm_90 and up): blocks that run at the same time and access each other's shared memory. On older devices a
// cluster is a single block.
#pragma once

#include "cuda/types.cuh"

namespace tl {

#if __CUDA_ARCH__ >= 900
#define TL_HAS_CLUSTERS 1
#define TL_CLUSTER_DIMS(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define TL_HAS_CLUSTERS 0
#define TL_CLUSTER_DIMS(blocks)
#endif

// A barrier of all threads of the cluster. Writes to shared memory before the barrier are visible to all after it.
__device__ __forceinline__ void cluster_sync() {
#if TL_HAS_CLUSTERS
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// The two halves of cluster_sync(), for warps whose writes no other block reads, or that need not wait.
__device__ __forceinline__ void cluster_arrive() {
#if TL_HAS_CLUSTERS
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if TL_HAS_CLUSTERS
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ int cluster_rank() {
#if TL_HAS_CLUSTERS
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
#else
  return 0;
#endif
}

#if TL_HAS_CLUSTERS
// The address in block `rank` of the cluster that corresponds to `local`, a shared-memory address of this block.
__device__ __forceinline__ u32 address_of_block(u32 local, int rank) {
  u32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(local), "r"(rank));
  return address;
}

// Like barrier_wait(), for data sent by other blocks of the cluster.
__device__ __forceinline__ void barrier_wait_cluster(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nretry:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra retry;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Signals that copies into a buffer may begin. The signal does not order this thread's writes: that would take long.
__device__ __forceinline__ void barrier_arrive_of_block(u32 barrier, int rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_of_block(barrier, rank)) : "memory");
}

// Sends numbers to shared memory of block `rank` at `local`, where they count as bytes that its `barrier` waits for.
// The alternative, an arrival with release semantics, would wait for all of this thread's pending writes, including
// those to global memory (1 us on an H200).
__device__ __forceinline__ void send_to_block(u32 local, u32 barrier, int rank, float value) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address_of_block(local, rank)),
      "f"(value), "r"(address_of_block(barrier, rank))
      : "memory");
}
__device__ __forceinline__ void send_to_block(u32 local, u32 barrier, int rank, float2 values) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
                   address_of_block(local, rank)),
               "f"(values.x), "f"(values.y), "r"(address_of_block(barrier, rank))
               : "memory");
}
#endif

// Loads the 32- or 64-bit value that block `rank` of the cluster has at the address of `*local`.
template <class T>
__device__ __forceinline__ T load_of_block(const T* local, int rank) {
#if TL_HAS_CLUSTERS
  static_assert(T(1) / T(2) == T(0) && (sizeof(T) == 4 || sizeof(T) == 8), "whole numbers that a register holds");
  const u32 address = address_of_block(static_cast<u32>(__cvta_generic_to_shared(local)), rank);
  if constexpr (sizeof(T) == 4) {
    u32 value;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return static_cast<T>(value);
  } else {
    u64 value;
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(value) : "r"(address) : "memory");
    return static_cast<T>(value);
  }
#else
  return *local;
#endif
}

}  // namespace tl
