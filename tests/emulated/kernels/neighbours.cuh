// Clusters of TL_BLOCKS blocks: each block's first thread writes a number, and reads that of the next block.
#include "cuda/cluster.cuh"

extern "C" __global__ void TL_CLUSTER_DIMS(TL_BLOCKS) neighbours(unsigned* output) {
  using namespace tl;
  extern __shared__ __align__(128) char memory[];
  u64* mine = reinterpret_cast<u64*>(memory);
  if (threadIdx.x == 0) *mine = 100 + blockIdx.x;
  cluster_sync();
  if (threadIdx.x == 0) output[blockIdx.x] = static_cast<u32>(load_of_block(mine, (cluster_rank() + 1) % TL_BLOCKS));
  if (TL_STAYS) cluster_sync();
}
