// A stable sort of choices by expert, in one cluster: rows keep their order within an expert.
//
// Each block has neighbouring rows, and each of its warps has neighbouring choices of these rows, which it counts by
// expert. Blocks then read each other's counts, so that each knows how many choices of an expert, and of all experts
// before it, come before its own. Launch: a cluster of kSortBlocks blocks of TL_THREADS threads, ExpertSort::kInts
// integers of dynamic shared memory. Macros: TL_THREADS, TL_GROUP_ROWS (the most rows of a group), and those of
// router/local.cuh.
#pragma once

#include "cuda/cluster.cuh"
#include "router/count.cuh"

namespace tl {

constexpr int kSortBlocks = 8, kSortWarps = TL_THREADS / 32;
// A thread has neighbouring experts.
constexpr int kOfThread = ceil_div(kExperts, TL_THREADS), kSumWarps = ceil_div(kExperts, kOfThread * 32);

// The rows of a block in its cluster.
struct BlockRows {
  int first, count;

  __device__ __forceinline__ explicit BlockRows(int rows) {
    const int share = ceil_div(rows, kSortBlocks);
    first = min_of(cluster_rank() * share, rows);
    count = min_of(share, rows - first);
  }
};

// The sum of `value` over the lanes below `lane` of its warp.
__device__ __forceinline__ int sum_before(int value, int lane) {
  int sum = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, distance);
    if (lane >= distance) sum += other;
  }
  return sum - value;
}

// A thread's counts for its experts.
struct ThreadExperts {
  int all[kOfThread];     // choices of each expert
  int before[kOfThread];  // the choices of each expert in earlier blocks
  int choices, groups;    // groups of this rank's experts, and choices of all experts, before the thread's

  __device__ __forceinline__ static int expert(int i) { return threadIdx.x * kOfThread + i; }
  __device__ __forceinline__ static int groups_of(int choices) { return ceil_div(choices, TL_GROUP_ROWS); }

  // `totals` [kExperts]: this block's choices of each expert; other blocks have theirs at the same address. `ep_rank`:
  // the EP rank of this rank.
  __device__ __forceinline__ ThreadExperts(const int* totals, int ep_rank, int lane) {
    choices = groups = 0;
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      all[i] = before[i] = 0;
      if (expert(i) < kExperts) read(i, totals + expert(i));
      choices += all[i];
      if (expert(i) / kLocalExperts == ep_rank) groups += groups_of(all[i]);
    }
    add_up(lane);
  }

 private:
  __device__ __forceinline__ void read(int i, const int* total) {
    int of_blocks[kSortBlocks];
#pragma unroll
    for (int block = 0; block < kSortBlocks; ++block) of_blocks[block] = load_of_block(total, block);
#pragma unroll
    for (int block = 0; block < kSortBlocks; ++block) {
      all[i] += of_blocks[block];
      if (block < cluster_rank()) before[i] += of_blocks[block];
    }
  }
  // Replaces each thread's sums by those of the threads before it.
  __device__ __forceinline__ void add_up(int lane) {
    __shared__ int2 of_warps[kSumWarps];
    const int warp = threadIdx.x / 32, own_choices = choices, own_groups = groups;
    choices = sum_before(choices, lane);
    groups = sum_before(groups, lane);
    if (lane == 31 && warp < kSumWarps) of_warps[warp] = make_int2(choices + own_choices, groups + own_groups);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSumWarps; ++i) {
      if (i >= warp) break;
      choices += of_warps[i].x;
      groups += of_warps[i].y;
    }
  }
};

struct ExpertSort {
  static constexpr int kInts = (kSortWarps + 2) * kExperts;
  int* counts;  // [kSortWarps, kExperts]: choices of each warp; later, the block's choices before the warp's next one
  int* totals;  // [kExperts]: choices of the block
  int* begins;  // [kExperts]: for each expert, the cluster's choices before the block's first one, including all of
                // earlier experts

  __device__ __forceinline__ explicit ExpertSort(int* memory)
      : counts(memory), totals(memory + kSortWarps * kExperts), begins(totals + kExperts) {}

  __device__ __forceinline__ void clear() const {
    for (int i = threadIdx.x; i < kSortWarps * kExperts; i += TL_THREADS) counts[i] = 0;
  }
  // Converts the block's `choices`, indices among all experts or -1, to `places`, which may be the same memory. The
  // first block lists the groups of the rank's experts and updates the tally.
  __device__ __forceinline__ void run(const int* choices, int* places, int count, int* list, Tally tally,
                                      const RankTable* ranks) const {
    __shared__ int before_ep_ranks[kEpSize + 1];  // choices of the experts of all lower EP ranks
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int own_ep_rank = kEpSize == 1 ? 0 : static_cast<int>(ranks->rank) / TL_MOE_TP;
    const int share = ceil_div(count, kSortWarps * 32) * 32;
    const int first = min_of(warp * share, count), end = min_of(first + share, count);
    int* mine = counts + warp * kExperts;
    add_up(choices, first, end, mine, lane);
    __syncthreads();
    join_warps();
    cluster_sync();
    const ThreadExperts experts(totals, own_ep_rank, lane);
    find_begins(experts, before_ep_ranks);
    __syncthreads();
    cluster_arrive();  // this block has finished reading other blocks' totals
    find_places(choices, places, first, end, mine, before_ep_ranks[own_ep_rank], own_ep_rank, lane);
    if (cluster_rank() == 0) {
      list_groups(experts, list, tally, before_ep_ranks[own_ep_rank], own_ep_rank, lane);
      if (threadIdx.x == 0) tally.add_step(largest(before_ep_ranks));
    }
    cluster_wait();
  }

 private:
  static constexpr int kAtOnce = 4;

  // Counts a warp's choices first .. end - 1 by expert, in `mine`.
  __device__ __forceinline__ static void add_up(const int* choices, int first, int end, int* mine, int lane) {
    for (int at = first + lane; at < end; at += kAtOnce * 32) {
      int experts[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) experts[i] = at + i * 32 < end ? choices[at + i * 32] : -1;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (experts[i] >= 0) atomicAdd(mine + experts[i], 1);
      }
    }
  }
  // Replaces each warp's counts by those of the warps before it.
  __device__ __forceinline__ void join_warps() const {
    for (int e = threadIdx.x; e < kExperts; e += TL_THREADS) {
      int of_warps[kSortWarps], total = 0;
#pragma unroll
      for (int warp = 0; warp < kSortWarps; ++warp) of_warps[warp] = counts[warp * kExperts + e];
#pragma unroll
      for (int warp = 0; warp < kSortWarps; ++warp) {
        counts[warp * kExperts + e] = total;
        total += of_warps[warp];
      }
      totals[e] = total;
    }
  }
  __device__ __forceinline__ void find_begins(const ThreadExperts& experts, int* before_ep_ranks) const {
    int choices = experts.choices;
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const int e = experts.expert(i);
      if (e >= kExperts) break;
      if (e % kLocalExperts == 0) before_ep_ranks[e / kLocalExperts] = choices;
      begins[e] = choices + experts.before[i];
      choices += experts.all[i];
      if (e == kExperts - 1) before_ep_ranks[kEpSize] = choices;
    }
  }
  // Finds the places of a warp's choices. Among equal choices, that of the lower lane comes first. The next choices are
  // requested before the places of these are found.
  __device__ __forceinline__ void find_places(const int* choices, int* places, int first, int end, int* mine,
                                              int others, int own_ep_rank, int lane) const {
    int next = first + lane < end ? choices[first + lane] : -1;
    for (int at = first + lane; at - lane < end; at += 32) {
      const int expert = next;
      next = at + 32 < end ? choices[at + 32] : -1;
      const u32 equal = __match_any_sync(0xffffffffu, expert);
      const int before = __popc(equal & ((1u << lane) - 1));
      const bool is_own = expert >= 0 && expert / kLocalExperts == own_ep_rank;
      const int place = is_own ? begins[expert] - others + mine[expert] + before : -1;
      __syncwarp();
      if (is_own && (equal >> lane) == 1) mine[expert] += before + 1;
      __syncwarp();
      if (at < end) places[at] = place;
    }
  }
  __device__ __forceinline__ static void list_groups(const ThreadExperts& experts, int* list, Tally tally, int others,
                                                     int own_ep_rank, int lane) {
    int first = experts.choices - others, group = experts.groups;
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const int e = experts.expert(i), count = experts.all[i], end = first + count;
      const bool is_own = e < kExperts && e / kLocalExperts == own_ep_rank;
      const int local = e - own_ep_rank * kLocalExperts;
      const u32 chosen = __ballot_sync(0xffffffffu, is_own && count > 0);
      if (lane == 0 && chosen != 0) tally.add_read(__popc(chosen));
      if (is_own) {
        if (count > 0) tally.add_choices(local, count);
        for (int row = first; row < end; row += TL_GROUP_ROWS, ++group) {
          reinterpret_cast<ExpertRows*>(list + 4)[group] = {local, row, min_of(row + TL_GROUP_ROWS, end), 0};
        }
        if (local == kLocalExperts - 1) list[0] = group;
      }
      first = end;
    }
  }
  // The choices of the experts of the EP rank that has the most.
  __device__ __forceinline__ static int largest(const int* before_ep_ranks) {
    int most = 0;
#pragma unroll
    for (int ep_rank = 0; ep_rank < kEpSize; ++ep_rank)
      most = max_of(most, before_ep_ranks[ep_rank + 1] - before_ep_ranks[ep_rank]);
    return most;
  }
};

}  // namespace tl
