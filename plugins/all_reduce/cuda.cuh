// AllReduce: y = the sum of x over all ranks, 16-bit elements, added in float32 in the order of the ranks: one shot,
// each rank reads x of all, so that all get the same bits.
//
// Bytes over the link: 2 * elements from each other rank. Floor: two meetings, about 3 us, or bytes / bandwidth of the
// link. Launch: a grid of at most TL_MEETING_BLOCKS, the same on all ranks. Macros: TL_FP16, TL_MEETING_BLOCKS.
#include "cuda/ranks.cuh"
#include "cuda/types.cuh"

extern "C" __global__ void all_reduce(tl::u16* y, const tl::u16* x, const tl::RankTable* ranks, int* flags, int rows,
                                      int row_vectors) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  BlockMeeting meeting(ranks, flags);
  meeting.meet(0);  // x is there on all ranks
  const int count = static_cast<int>(ranks->count), stride = gridDim.x * blockDim.x;
  const u64 num_vectors = static_cast<u64>(rows) * row_vectors;
  for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < num_vectors; i += stride) {
    float sum[8] = {};
    for (int rank = 0; rank < count; ++rank) {
      float values[8];
      unpack8(reinterpret_cast<const uint4*>(in_arena(ranks, x, rank))[i], values);
#pragma unroll
      for (int k = 0; k < 8; ++k) sum[k] += values[k];
    }
    reinterpret_cast<uint4*>(y)[i] = pack8(sum);
  }
  meeting.meet(1);  // nobody reads x any more
}
