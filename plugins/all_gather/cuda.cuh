// AllGather: y[row] has the float32 features of all ranks side by side; what goes beyond the features of y is left out.
//
// Bytes over the link: 4 * elements of each other rank. Floor: two meetings, about 3 us, or bytes / bandwidth of the
// link. Launch: a grid of at most TL_MEETING_BLOCKS, the same on all ranks. Macros: TL_MEETING_BLOCKS.
#include "cuda/ranks.cuh"

extern "C" __global__ void all_gather(float* y, const float* x, const tl::RankTable* ranks, int* flags, int rows,
                                      int part, int features) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  BlockMeeting meeting(ranks, flags);
  meeting.meet(0);
  const int stride = gridDim.x * blockDim.x;
  for (int row = 0; row < rows; ++row) {
    for (int column = blockIdx.x * blockDim.x + threadIdx.x; column < features; column += stride) {
      const int rank = column / part;
      const u64 place = static_cast<u64>(row) * part + column - rank * part;
      y[static_cast<u64>(row) * features + column] = in_arena(ranks, x, rank)[place];
    }
  }
  meeting.meet(1);
}
