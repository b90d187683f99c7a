// Waiting for other ranks with a timeout: a rank that does not come has failed, and the others must not wait forever.
#pragma once

#include "cuda/rank_memory.cuh"

namespace tl {

__device__ __forceinline__ u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// One thread's polling wait for rank `other` in collective `site`: `while (!here && !wait.is_over())`.
class RankWait {
 public:
  __device__ __forceinline__ RankWait(const RankTable* ranks, int other, int site)
      : ranks_(ranks), other_(other), site_(site) {}

  // Whether to give up: this rank or another has timed out (which the alarm tells the host), or the host has given up
  // on a rank. The step has then failed, and its results are discarded. (Kernels write host memory but never read it:
  // reads by so many threads would delay the host's launches.)
  __device__ __forceinline__ bool is_over() {
    if (++num_looks_ % kLooksBetween != 0) return false;
    if (*static_cast<const volatile u64*>(&ranks_->is_over) != 0) return true;
    const u64 now = nanoseconds();
    if (begin_ == 0) begin_ = now;
    if (now - begin_ < ranks_->timeout) return false;
    raise();
    return true;
  }

 private:
  static constexpr int kLooksBetween = 256;

  __device__ __noinline__ void raise() const {
    volatile RankAlarm* alarm = reinterpret_cast<RankAlarm*>(ranks_->alarm);
    if (alarm->missing == 0) {  // only the first alarm counts
      alarm->site = site_;
      __threadfence_system();
      alarm->missing = static_cast<int>(ranks_->first) + other_ + 1;
      __threadfence_system();  // the host must see the alarm before any rank ends the step
    }
    for (int rank = 0; rank < static_cast<int>(ranks_->count); ++rank) {
      *const_cast<volatile u64*>(in_state(ranks_, &ranks_->is_over, rank)) = 1;
    }
  }

  const RankTable* ranks_;
  const int other_, site_;
  int num_looks_ = 0;
  u64 begin_ = 0;
};

}  // namespace tl
