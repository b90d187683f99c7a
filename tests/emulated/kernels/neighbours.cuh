// Clusters of TL_BLOCKS blocks: each block's first thread writes numbers of 64 and 32 bits, and reads those of the next
// block.
#include "cuda/cluster.cuh"

extern "C" __global__ void TL_CLUSTER_DIMS(TL_BLOCKS) neighbours(unsigned* output) {
  using namespace tl;
  extern __shared__ __align__(128) char memory[];
  u64* mine = reinterpret_cast<u64*>(memory);
  u32* narrow = reinterpret_cast<u32*>(mine + 1);
  if (threadIdx.x == 0) {
    *mine = (100ull + blockIdx.x) << 32;
    *narrow = 1000 * blockIdx.x;
  }
  cluster_sync();
  if (threadIdx.x == 0) {
    const int next = (cluster_rank() + 1) % TL_BLOCKS;
    output[blockIdx.x] = static_cast<u32>(load_of_block(mine, next) >> 32) + load_of_block(narrow, next);
  }
  if (TL_STAYS) cluster_sync();
}
