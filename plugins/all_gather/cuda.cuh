// AllGather: y[row] has the float32 features of all ranks side by side; features beyond those of y are left out. If
// products have stored their rows on the first rank already (cuda/peer_rows.cuh), the kernel rows_are_there only waits
// for them.
//
// Bytes over the link: 4 * elements of each other rank. Floor: two barriers, about 3 us, or bytes / bandwidth of the
// link; one barrier if rows are stored already. Launch: a grid of at most TL_BARRIER_BLOCKS, the same on all ranks; one
// block if rows are stored already. `part`, the features of a rank, is a multiple of 4. Macros: TL_BARRIER_BLOCKS.
#include "cuda/ranks.cuh"

namespace tl {

constexpr int kAtOnce = 4;  // loads in flight per thread

// Stores the first `count` of four numbers. `aligned`: whether `to` is a multiple of 16 bytes.
__device__ __forceinline__ void store4(float* to, float4 values, int count, bool aligned) {
  if (aligned && count >= 4) {
    *reinterpret_cast<float4*>(to) = values;
    return;
  }
  const float each[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < count) to[k] = each[k];
  }
}

}  // namespace tl

extern "C" __global__ void all_gather(float* y, const float* x, const tl::RankTable* ranks, int* flags, int site,
                                      int rows, int part, int features) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  BlockBarrier barrier(ranks, flags, site);
  barrier.sync(0);
  const int in_row = part / 4, stride = gridDim.x * blockDim.x, thread = blockIdx.x * blockDim.x + threadIdx.x;
  for (int rank = 0; rank < static_cast<int>(ranks->count); ++rank) {
    const float4* from = reinterpret_cast<const float4*>(in_arena(ranks, x, rank));
    for (int first = thread; first < rows * in_row; first += kAtOnce * stride) {
      float4 values[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (first + k * stride < rows * in_row) values[k] = from[first + k * stride];
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int place = first + k * stride, row = place / in_row, column = rank * part + place % in_row * 4;
        if (place >= rows * in_row || column >= features) continue;
        store4(y + static_cast<u64>(row) * features + column, values[k], features - column, features % 4 == 0);
      }
    }
  }
  barrier.sync(1);
}

extern "C" __global__ void rows_are_there(const tl::RankTable* ranks, int* flags, int site) {
  tl::wait_for_previous_kernel();
  tl::allow_next_kernel();
  tl::BlockBarrier(ranks, flags, site).sync_once();
}
