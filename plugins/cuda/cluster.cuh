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
