// Rows that ranks write into each other's memory. The receiver polls the rows themselves; there are no flags or
// barriers.
#pragma once

#include "cuda/rank_wait.cuh"

namespace tl {

// The word that marks an empty place: two elements of -0. Words are encoded on the way so that an empty word is 0,
// which is what memory holds initially. A data word of two -0 is sent as 0, on all ranks alike.
constexpr u32 kNothing = 0x80008000u;
__device__ __forceinline__ u32 as_sent(u32 word) { return word == kNothing ? kNothing : word ^ kNothing; }
__device__ __forceinline__ uint4 as_sent(uint4 v) {
  return make_uint4(as_sent(v.x), as_sent(v.y), as_sent(v.z), as_sent(v.w));
}
__device__ __forceinline__ uint4 received(uint4 v) {
  return make_uint4(v.x ^ kNothing, v.y ^ kNothing, v.z ^ kNothing, v.w ^ kNothing);
}

__device__ __forceinline__ void store_system(uint4* to, uint4 v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ uint4 load_system(const uint4* from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

// The row that a block exchanges with the block of the same number on every other rank: block i exchanges row i, of
// TL_HIDDEN elements. Each thread sends and receives the same places of the row. `turns` are int32 [TL_INBOX_ROWS],
// `inbox` is [3][TL_INBOX_ROWS][count - 1][TL_HIDDEN / 8] vectors; both are zero initially.
//
// Turns use three places in rotation. A rank that sends in turn n has received what the others sent in turn n - 1. They
// sent it in a kernel that ran after the one of turn n - 2, in which they had received and cleared the places of
// earlier turns. So the place that the rank writes to has been read and is empty.
class RankInbox {
 public:
  __device__ __forceinline__ RankInbox(const RankTable* ranks, int* turns, uint4* inbox, int site)
      : ranks_(ranks),
        rank_(static_cast<int>(ranks->rank)),
        count_(static_cast<int>(ranks->count)),
        site_(site),
        turns_(turns),
        inbox_(inbox),
        turn_(turns[blockIdx.x]) {}

  __device__ __forceinline__ int count() const { return count_; }

  __device__ __forceinline__ void send(int vector, uint4 elements) const {
    for (int step = 1; step < count_; ++step) {  // begins at a different rank on each rank
      const int other = (rank_ + step) % count_;
      store_system(in_state(ranks_, place(turn_, rank_ - (rank_ > other), vector), other), as_sent(elements));
    }
  }

  // Waits for the vector that rank `other` sends. If that is this rank, returns `own` as the others receive it.
  __device__ __forceinline__ uint4 take(int other, int vector, uint4 own) const {
    if (other == rank_) return received(as_sent(own));
    const int from = other - (other > rank_);
    RankWait wait(ranks_, other, site_);
    uint4 found;
    do {
      found = load_system(place(turn_, from, vector));
    } while ((found.x == 0 || found.y == 0 || found.z == 0 || found.w == 0) && !wait.is_over());
    *place(turn_ + 2, from, vector) = make_uint4(0, 0, 0, 0);  // clears the place of the turn before
    return received(found);
  }

  // Advances the block's turn. Called by one thread after all threads of the block have constructed their inbox.
  __device__ __forceinline__ void end_turn() const { turns_[blockIdx.x] = (turn_ + 1) % 3; }

 private:
  __device__ __forceinline__ uint4* place(int turn, int from, int vector) const {
    const u64 row = static_cast<u64>(turn % 3) * TL_INBOX_ROWS + blockIdx.x;
    return inbox_ + (row * (count_ - 1) + from) * (TL_HIDDEN / 8) + vector;
  }

  const RankTable* ranks_;
  const int rank_, count_, site_;
  int* turns_;
  uint4* inbox_;
  const int turn_;
};

}  // namespace tl
