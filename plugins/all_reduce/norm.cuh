// AllReduce with the norm behind it, for few rows: sum = x of all ranks, added in their order and rounded to 16 bits,
// + residual; y = sum / sqrt(mean(sum^2) + epsilon) * weight. The bits are those of all_reduce and then rms_norm.
//
// Bytes over the link: 2 * elements from each other rank. Floor: two meetings, about 3 us. One block a row, which stays
// in registers. Launch: grid = rows, at most TL_MEETING_BLOCKS, TL_THREADS threads. Macros: TL_HIDDEN, TL_THREADS (a
// multiple of 32), TL_FP16, TL_MEETING_BLOCKS.
#include "cuda/block_sum.cuh"
#include "cuda/ranks.cuh"
#include "cuda/types.cuh"

namespace tl {

constexpr int kVectors = TL_HIDDEN / 8, kCount = ceil_div(kVectors, TL_THREADS);
static_assert(TL_HIDDEN % 8 == 0 && TL_THREADS % 32 == 0);

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    all_reduce_norm(tl::u16* y, tl::u16* sum, const tl::u16* x, const tl::u16* residual, const float* weight,
                    float epsilon, const tl::RankTable* ranks, int* flags) {
  using namespace tl;
  float scales[kCount][8];  // constants, so this need not wait for the previous kernel
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
    const float4* from = reinterpret_cast<const float4*>(weight) + vector * 2;
    *reinterpret_cast<float4*>(scales[i]) = from[0];
    *reinterpret_cast<float4*>(scales[i] + 4) = from[1];
  }
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = static_cast<u64>(blockIdx.x) * kVectors;
  float added[kCount][8];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector < kVectors) unpack8(reinterpret_cast<const uint4*>(residual)[row + vector], added[i]);
  }
  BlockMeeting meeting(ranks, flags);
  meeting.meet(0);  // x is there on all ranks
  const int count = static_cast<int>(ranks->count);
  float total[kCount][8] = {};
  for (int rank = 0; rank < count; ++rank) {
    const uint4* from = reinterpret_cast<const uint4*>(in_arena(ranks, x, rank)) + row;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int vector = threadIdx.x + i * TL_THREADS;
      if (vector >= kVectors) break;
      float values[8];
      unpack8(from[vector], values);
#pragma unroll
      for (int j = 0; j < 8; ++j) total[i][j] += values[j];
    }
  }
  float squares = 0.0f;
  uint4 kept[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
    unpack8(pack8(total[i]), total[i]);
#pragma unroll
    for (int j = 0; j < 8; ++j) total[i][j] += added[i][j];
    kept[i] = pack8(total[i]);
    reinterpret_cast<uint4*>(sum)[row + vector] = kept[i];
    unpack8(kept[i], total[i]);
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += total[i][j] * total[i][j];
  }
  const float inverse = rsqrtf(block_sum(squares) / TL_HIDDEN + epsilon);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
#pragma unroll
    for (int j = 0; j < 8; ++j) total[i][j] *= inverse * scales[i][j];
    reinterpret_cast<uint4*>(y)[row + vector] = pack8(total[i]);
  }
  meeting.meet(1);  // nobody reads x any more
}
