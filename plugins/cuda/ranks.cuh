// Kernels of the ranks of an engine meet by flags in each other's memory, which they can do in graphs by themselves.
#pragma once

#include "cuda/async.cuh"
#include "cuda/rank_memory.cuh"

namespace tl {

constexpr int kMeetingBlocks = TL_MEETING_BLOCKS;

__device__ __forceinline__ void store_release(int* to, int value) {
  asm volatile("st.release.sys.global.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ int load_acquire(const int* from) {
  int value;
  asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Meetings of one block with the blocks of its number on the other ranks. The grid is the same on all ranks, and of at
// most kMeetingBlocks. `flags` are int32 [2 * kMeetingBlocks * kMaxRanks], then [kMeetingBlocks] numbers of meetings so
// far, all zero at load.
class BlockMeeting {
 public:
  __device__ __forceinline__ BlockMeeting(const RankTable* ranks, int* flags)
      : ranks_(ranks),
        flags_(flags),
        epoch_(flags + 2 * kMeetingBlocks * kMaxRanks + blockIdx.x),
        number_(*epoch_ + 1) {}

  // Returns when the ranks have come here: `phase` 0, then 1. What a rank wrote before is seen by all behind it.
  __device__ __forceinline__ void meet(int phase) {
    __syncthreads();
    const int other = threadIdx.x;
    if (other < static_cast<int>(ranks_->count)) {
      int* own = flags_ + (phase * kMeetingBlocks + blockIdx.x) * kMaxRanks;
      store_release(in_state(ranks_, own, other) + ranks_->rank, number_);
      wait(own + other);
    }
    if (phase == 1 && threadIdx.x == 0) *epoch_ = number_;
    __syncthreads();
  }

 private:
  // A rank that does not come within half a minute has failed, and the others must not wait for ever.
  __device__ __forceinline__ void wait(const int* flag) const {
    if (load_acquire(flag) - number_ >= 0) return;
    const u64 begin = nanoseconds();
    while (load_acquire(flag) - number_ < 0) {
      if (nanoseconds() - begin > 30'000'000'000ull) asm volatile("trap;");
    }
  }

  const RankTable* ranks_;
  int *flags_, *epoch_, number_;
};

}  // namespace tl
