// Barriers between kernels of an engine's ranks, by flags in each other's memory. They also work within graphs.
#pragma once

#include "cuda/rank_wait.cuh"

namespace tl {

constexpr int kBarrierBlocks = TL_BARRIER_BLOCKS;

__device__ __forceinline__ void store_release(int* to, int value) {
  asm volatile("st.release.sys.global.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ int load_acquire(const int* from) {
  int value;
  asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Barriers of one block with the blocks of its number on the other ranks, in collective `site`. The grid is the same on
// all ranks and has at most kBarrierBlocks blocks. `flags` are int32 [2 * kBarrierBlocks * kMaxRanks], then
// [kBarrierBlocks] counts of barriers so far, all zero initially.
class BlockBarrier {
 public:
  __device__ __forceinline__ BlockBarrier(const RankTable* ranks, int* flags, int site)
      : ranks_(ranks),
        flags_(flags),
        epoch_(flags + 2 * kBarrierBlocks * kMaxRanks + blockIdx.x),
        number_(*epoch_ + 1),
        site_(site) {}

  // Waits until all ranks have called this; a kernel calls it with `phase` 0, then 1. What a rank wrote before the call
  // is visible to all ranks after it.
  __device__ __forceinline__ void sync(int phase) {
    __syncthreads();
    const int other = threadIdx.x;
    if (other < static_cast<int>(ranks_->count)) {
      int* own = flags_ + (phase * kBarrierBlocks + blockIdx.x) * kMaxRanks;
      store_release(in_state(ranks_, own, other) + ranks_->rank, number_);
      RankWait wait(ranks_, other, site_);
      while (load_acquire(own + other) - number_ < 0 && !wait.is_over()) {
      }
    }
    if (phase == 1) end();
    __syncthreads();
  }

  // A barrier with a single phase.
  __device__ __forceinline__ void sync_once() {
    sync(0);
    end();
  }

 private:
  __device__ __forceinline__ void end() {
    if (threadIdx.x == 0) *epoch_ = number_;
  }

  const RankTable* ranks_;
  int *flags_, *epoch_;
  const int number_, site_;
};

}  // namespace tl
