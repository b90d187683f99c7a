// AllReduce of a few rows: each rank writes its rows into the memory of all others, and adds up what it receives in
// float32, in the order of ranks, so that all ranks get equal bits. With TL_NORM, sum = that result, rounded to 16
// bits, + residual, and y = the RMS norm of sum, bit-equal to all_reduce_pull followed by rms_norm.
//
// Bytes over the link: 2 * elements to each other rank. Floor: the latency of a store over the link, about 1 us. On two
// H200s in a graph: 2.7 us for a row of 4096 elements with the norm, 2.9 us for 8 rows, 4.1 us for 64. One block per
// row. Launch: grid = rows, at most TL_INBOX_ROWS, TL_THREADS threads. Macros: TL_NORM (0 or 1), TL_INBOX_ROWS,
// TL_FP16, those of cuda/norm_row.cuh.
#include "cuda/norm_row.cuh"
#include "cuda/rank_inbox.cuh"

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    all_reduce_push(void* y, float* row_scales, tl::u16* sum, const tl::u16* x, const float* weight,
                    const tl::u16* residual, float epsilon, float y_scale, const tl::RankTable* ranks, int* turns,
                    uint4* inboxes, int site) {
  using namespace tl;
#if TL_NORM
  const NormWeight weights(weight);
#endif
  wait_for_previous_kernel();
  allow_next_kernel();
  const RankInbox inbox(ranks, turns, inboxes, site);
  const u64 row = static_cast<u64>(blockIdx.x) * kVectors;
  uint4 own[kCount], total[kCount];
  for_each_vector([&](int i, int vector) {
    own[i] = reinterpret_cast<const uint4*>(x)[row + vector];
    inbox.send(vector, own[i]);
#if TL_NORM
    total[i] = reinterpret_cast<const uint4*>(residual)[row + vector];  // while the rows of other ranks are in flight
#endif
  });
  for_each_vector([&](int i, int vector) {
    float added[8] = {};
    for (int rank = 0; rank < inbox.count(); ++rank) {
      float values[8];
      unpack8(inbox.take(rank, vector, own[i]), values);
#pragma unroll
      for (int j = 0; j < 8; ++j) added[j] += values[j];
    }
#if TL_NORM
    total[i] = add8(pack8(added), total[i]);
    reinterpret_cast<uint4*>(sum)[row + vector] = total[i];
#else
    static_cast<uint4*>(y)[row + vector] = pack8(added);
#endif
  });
  __syncthreads();  // all threads have read the number of the turn
  if (threadIdx.x == 0) inbox.end_turn();
#if TL_NORM
  norm_row(total, weights, blockIdx.x, {y, row_scales, epsilon, y_scale});
#endif
}
