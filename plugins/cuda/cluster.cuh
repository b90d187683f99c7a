// Clusters (sm_90 and up): blocks that run at the same time and read each other's shared memory. Before, a cluster is a
// single block.
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

// A barrier of all threads of the cluster; what they wrote to shared memory before is visible to all after.
__device__ __forceinline__ void cluster_sync() {
#if TL_HAS_CLUSTERS
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
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
// Where block `rank` of the cluster has what this block has at `local` of shared memory.
__device__ __forceinline__ u32 address_of_block(u32 local, int rank) {
  u32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(local), "r"(rank));
  return address;
}

__device__ __forceinline__ float load_of_block(u32 local, int rank) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address_of_block(local, rank)) : "memory");
  return value;
}

// Arrives at the barrier `local` of block `rank`: who waits there with barrier_wait_cluster() sees what this thread wrote,
// or saw, before.
__device__ __forceinline__ void barrier_arrive_cluster(u32 local, int rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address_of_block(local, rank))
               : "memory");
}

__device__ __forceinline__ void barrier_wait_cluster(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nretry:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra retry;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
#endif

// `*local` as block `rank` of the cluster has it.
__device__ __forceinline__ u64 load_of_block(const u64* local, int rank) {
#if TL_HAS_CLUSTERS
  u64 value;
  asm volatile("{\n.reg .u32 at;\nmapa.shared::cluster.u32 at, %1, %2;\nld.shared::cluster.u64 %0, [at];\n}"
               : "=l"(value)
               : "r"(static_cast<u32>(__cvta_generic_to_shared(local))), "r"(rank)
               : "memory");
  return value;
#else
  return *local;
#endif
}

}  // namespace tl
