// AllReduce of many rows: each rank reads the rows of all others in their memory and adds them up in float32, in the
// order of ranks, so that all ranks get equal bits. With TL_NORM, sum = that result, rounded to 16 bits, + residual,
// and y = the RMS norm of sum, as rms_norm computes it. With TL_OWNED, a rank only adds up the rows that it owns, every
// TL_RANKS-th, and writes y (with TL_SUM_EVERYWHERE also sum) into the memory of all others. With TL_STORED, the
// preceding product has stored all parts of a row on its owner, in x [TL_RANKS][TL_RANK_ROWS] (cuda/peer_rows.cuh), so
// that nothing is read over the link.
//
// Bytes over the link: 2 * elements from each other rank; with TL_OWNED, 1 / TL_RANKS of that (with TL_STORED sent by
// the product while it multiplies), and as many bytes of results to each rank. Floor: two barriers, about 3 us, or
// bytes / bandwidth of the link (two H200s: 331 GB/s to read, 360 to write). Launch: a grid of at most
// TL_BARRIER_BLOCKS, the same on all ranks, TL_THREADS threads; a block takes a row at a time and prefetches the next
// one. Macros: the above, TL_NORM (0 or 1), TL_BARRIER_BLOCKS, TL_FP16, those of cuda/norm_row.cuh.
#include "cuda/norm_row.cuh"
#include "cuda/ranks.cuh"

namespace tl {

// A thread's vectors of one row.
struct RowParts {
  uint4 x[TL_RANKS][kCount], residual[kCount];

  __device__ __forceinline__ RowParts(const RankTable* ranks, const u16* own, const u16* residual_rows, int number) {
    const u64 row = static_cast<u64>(number) * kVectors;
#pragma unroll
    for (int rank = 0; rank < TL_RANKS; ++rank) {
#if TL_STORED
      const u64 place = static_cast<u64>(rank) * TL_RANK_ROWS + number / TL_RANKS;
      const uint4* from = reinterpret_cast<const uint4*>(own) + place * kVectors;
#else
      const uint4* from = reinterpret_cast<const uint4*>(in_arena(ranks, own, rank)) + row;
#endif
      for_each_vector([&](int i, int vector) { x[rank][i] = from[vector]; });
    }
    if (!TL_NORM) return;
    for_each_vector(
        [&](int i, int vector) { residual[i] = reinterpret_cast<const uint4*>(residual_rows)[row + vector]; });
  }

  __device__ __forceinline__ uint4 sum(int i) const {
    float added[8] = {};
#pragma unroll
    for (int rank = 0; rank < TL_RANKS; ++rank) {
      float values[8];
      unpack8(x[rank][i], values);
#pragma unroll
      for (int j = 0; j < 8; ++j) added[j] += values[j];
    }
    return TL_NORM ? add8(pack8(added), residual[i]) : pack8(added);
  }
};

// Stores results on this rank, or on all ranks if `everywhere`.
struct Places {
  const RankTable* ranks;
  bool everywhere;

  template <typename T, typename Store>
  __device__ __forceinline__ void operator()(T* to, const Store& store) const {
    if (!everywhere) return store(to);
#pragma unroll
    for (int rank = 0; rank < TL_RANKS; ++rank) store(in_arena(ranks, to, rank));
  }
};

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    all_reduce_pull(void* y, float* row_scales, tl::u16* sum, const tl::u16* x, const float* weight,
                    const tl::u16* residual, float epsilon, float y_scale, const tl::RankTable* ranks, int* flags,
                    int site, int rows) {
  using namespace tl;
#if TL_NORM
  const NormWeight weights(weight);
#endif
  wait_for_previous_kernel();
  allow_next_kernel();
  BlockBarrier barrier(ranks, flags, site);
  barrier.sync(0);  // x of all ranks is written
  const Places y_places{ranks, TL_OWNED}, sum_places{ranks, TL_OWNED && (!TL_NORM || TL_SUM_EVERYWHERE)};
  const int first = TL_OWNED ? blockIdx.x * TL_RANKS + static_cast<int>(ranks->rank) : blockIdx.x;
  const int stride = TL_OWNED ? gridDim.x * TL_RANKS : gridDim.x;
  RowParts next(ranks, x, residual, max_of(min_of(first, rows - 1), 0));
  for (int number = first; number < rows; number += stride) {
    uint4 total[kCount];
    for_each_vector([&](int i, int vector) {
      total[i] = next.sum(i);
      uint4* to = TL_NORM ? reinterpret_cast<uint4*>(sum) : static_cast<uint4*>(y);
      sum_places(to + static_cast<u64>(number) * kVectors + vector, [&](uint4* place) { *place = total[i]; });
    });
    if (number + stride < rows) next = RowParts(ranks, x, residual, number + stride);
#if TL_NORM
    norm_row(total, weights, number, {y, row_scales, epsilon, y_scale}, y_places);
    __syncthreads();
#endif
  }
  barrier.sync(1);  // all ranks have read x and written their results
}
