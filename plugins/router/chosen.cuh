// The best experts of a row, and their shares, by one warp: lane i of 32 has experts i, i + 32, and so on.
//
// Of equal ones the expert, or the group, of the lower number is better. Macros: those of router/scoring.cuh.
#pragma once

#include "router/scoring.cuh"

namespace tl {

constexpr int kOfLane = ceil_div(kExperts, 32);
constexpr int kGroupExperts = kExperts / TL_GROUPS;
static_assert(kTopK <= 32, "a lane has each of the chosen");
static_assert(TL_GROUPS <= 32, "a lane has each of the groups");
static_assert(TL_NUM_BEST <= kGroupExperts, "a group has as many experts as it is chosen by");

// Numbers as integers of the same order, all of them greater than 0, which stands for none.
__device__ __forceinline__ u32 rank_of(float x) {
  const u32 bits = __float_as_uint(x + 0.0f);  // zero has one sign
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float of_rank(u32 rank) {
  return __uint_as_float(rank >> 31 != 0 ? rank ^ 0x80000000u : ~rank);
}

// The largest rank of a warp, and the least number that has it.
struct Best {
  u32 rank;
  int at;

  __device__ __forceinline__ Best(u32 own, int number) {
    rank = __reduce_max_sync(0xffffffffu, own);
    at = static_cast<int>(__reduce_min_sync(0xffffffffu, own == rank ? static_cast<u32>(number) : 0xffffffffu));
  }
};

// What the experts of a row are chosen by, as ranks.
struct Candidates {
  u32 ranks[kOfLane];

  // Whether the lane's expert number i is in `group`.
  __device__ __forceinline__ static bool is_in(int group, int i, int lane) {
    return (i * 32 + lane) / kGroupExperts == group;
  }
  // Takes the best out, of one group or of all (-1), of which some are left.
  __device__ __forceinline__ Best take(int group, int lane) {
    u32 best[kOfLane];
    int at[kOfLane];
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      best[i] = group < 0 || is_in(group, i, lane) ? ranks[i] : 0;
      at[i] = i * 32 + lane;
    }
    // Pairs at a time, because each comparison waits for those before.
#pragma unroll
    for (int distance = 1; distance < kOfLane; distance *= 2) {
#pragma unroll
      for (int i = 0; i + distance < kOfLane; i += 2 * distance) {
        if (best[i + distance] > best[i]) best[i] = best[i + distance], at[i] = at[i + distance];
      }
    }
    const Best found(best[0], at[0]);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (i * 32 + lane == found.at) ranks[i] = 0;
    }
    return found;
  }
  // Leaves the experts of the best groups: those whose TL_NUM_BEST best add up to the most.
  __device__ __forceinline__ void keep_best_groups(int lane) {
    Candidates left = *this;
    float total = 0.0f;  // of group `lane`
#pragma unroll 1
    for (int best = 0; best < TL_NUM_BEST; ++best) {
#pragma unroll
      for (int group = 0; group < TL_GROUPS; ++group) {
        const float value = of_rank(left.take(group, lane).rank);
        if (lane == group) total += value;
      }
    }
    u32 of_group = lane < TL_GROUPS ? rank_of(total) : 0, kept = 0;
#pragma unroll 1
    for (int i = 0; i < TL_TOP_GROUPS; ++i) {
      const Best best(of_group, lane);
      kept |= 1u << best.at;
      if (lane == best.at) of_group = 0;
    }
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int expert = i * 32 + lane;
      if (expert >= kExperts || (kept >> expert / kGroupExperts & 1) == 0) ranks[i] = 0;
    }
  }
};

// Lane i has the row's choice number i.
struct Chosen {
  int expert = 0;
  float share = 0.0f;

  __device__ __forceinline__ Chosen(const ScoreRow& row, int lane) {
    float scores[kOfLane], largest = kLeast, total = 0.0f;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int e = i * 32 + lane;
      scores[i] = e < kExperts ? row[e] : kLeast;
      largest = fmaxf(largest, scores[i]);
    }
    if constexpr (kNeedsTotal) {
      largest = warp_max(largest);
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        if (i * 32 + lane < kExperts) total += __expf(scores[i] - largest);
      }
      total = warp_sum(total);
    }
    Candidates candidates;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int e = i * 32 + lane;
      candidates.ranks[i] = e < kExperts ? rank_of(row.chosen_by(e, scores[i], largest, total)) : 0;
    }
    if constexpr (TL_GROUPS > 1) candidates.keep_best_groups(lane);
#pragma unroll 1
    for (int slot = 0; slot < kTopK; ++slot) {
      const Best best = candidates.take(-1, lane);
      if (lane == slot) expert = best.at;
    }
    share = row.share(lane < kTopK, row[expert], largest, total);
  }
};

}  // namespace tl
