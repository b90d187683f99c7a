// One warp finds the best experts of a row and their shares: lane i of 32 has experts i, i + 32, and so on.
//
// Among equal experts or groups, the one with the lower number is better. Macros: those of router/scoring.cuh.
#pragma once

#include "router/scoring.cuh"

namespace tl {

constexpr int kOfLane = ceil_div(kCandidates, 32);
constexpr int kGroupExperts = kCandidates / TL_GROUPS;
static_assert(kTopK <= 32, "each chosen expert has a lane");
static_assert(kOfLane <= 32, "each expert of a lane has a bit");
static_assert(TL_GROUPS <= 32, "each group has a lane");
static_assert(TL_NUM_BEST <= kGroupExperts, "a group has at least TL_NUM_BEST experts");

// The largest rank in a warp, and the lowest number that has it.
struct Best {
  u32 rank;
  int at;

  __device__ __forceinline__ Best(u32 own, int number) {
    rank = __reduce_max_sync(0xffffffffu, own);
    at = static_cast<int>(__reduce_min_sync(0xffffffffu, own == rank ? static_cast<u32>(number) : 0xffffffffu));
  }
};

// The values by which a row's experts are chosen, as integers of the same order.
struct Candidates {
  u32 ranks[kOfLane];

  // Whether the lane's i-th expert is in `group`.
  __device__ __forceinline__ static bool is_in(int group, int i, int lane) {
    return (i * 32 + lane) / kGroupExperts == group;
  }
  // Removes and returns the best expert of a group, or of all if `group` is -1. At least one must be left.
  __device__ __forceinline__ Best take(int group, int lane) {
    u32 best[kOfLane];
    int at[kOfLane];
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      best[i] = group < 0 || is_in(group, i, lane) ? ranks[i] : 0;
      at[i] = i * 32 + lane;
    }
    // Compares in pairs, because in a sequence each comparison would wait for the one before.
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
  // Keeps only the experts of the best groups: those whose TL_NUM_BEST best experts have the largest sums.
  __device__ __forceinline__ void keep_best_groups(int lane) {
    Candidates left = *this;
    float total = 0.0f;  // sum of group `lane`
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
      if (expert >= kCandidates || (kept >> expert / kGroupExperts & 1) == 0) ranks[i] = 0;
    }
  }
};

// What is added to the scores of a lane's experts, and to what they are chosen by. These are constants, which a kernel
// loads before it waits for the scores.
struct LaneTerms {
  float bias[kOfLane] = {}, correction[kOfLane] = {};

  __device__ __forceinline__ LaneTerms(const float* biases, const float* corrections, int lane) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int e = i * 32 + lane;
      if (TL_SCORE_BIAS != 0 && e < kCandidates) bias[i] = biases[e];
      if (TL_CORRECTION != 0 && e < kCandidates) correction[i] = corrections[e];
    }
  }
};

// Lane i < kTopK has expert i of the row: first the chosen ones, then the shared ones.
struct Chosen {
  int expert = 0;
  float largest = kLeast, total = 0.0f;  // of all scores, and of their powers; only if kNeedsTotal

  __device__ __forceinline__ Chosen(int expert, float largest, float total)
      : expert(expert), largest(largest), total(total) {}
  __device__ __forceinline__ Chosen(const ScoreRow& row, const LaneTerms& terms, int lane) {
    float scores[kOfLane];
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int e = i * 32 + lane;
      scores[i] = e < kCandidates ? row.score(e, terms.bias[i]) : kLeast;
      largest = fmaxf(largest, scores[i]);
    }
    if constexpr (kNeedsTotal) {
      largest = largest_score(largest);
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        if (i * 32 + lane < kCandidates) total += __expf(scores[i] - largest);
      }
      total = warp_sum(total);
    }
    Candidates candidates;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int e = i * 32 + lane;
      const float by = ScoreRow::chosen_by(scores[i], terms.correction[i], largest, total);
      candidates.ranks[i] = e < kCandidates ? rank_of(by) : 0;
    }
    if constexpr (TL_GROUPS > 1) candidates.keep_best_groups(lane);
#pragma unroll 1
    for (int slot = 0; slot < kChoices; ++slot) {
      const Best best = candidates.take(-1, lane);
      if (lane == slot) expert = best.at;
    }
    if (TL_SHARED > 0 && lane >= kChoices && lane < kTopK) expert = kCandidates + lane - kChoices;
  }
  // The share of the lane's expert. It is a method of its own because weights are requested before it is known.
  __device__ __forceinline__ float share(const ScoreRow& row, int lane) const {
    const float of_shared = row.shared();
    const int own = lane < kChoices ? max_of(expert, 0) : 0;
    const float score = row[own];
    float of_chosen = 0.0f;
    if constexpr (kIsMixer) {
      of_chosen = mixed(row, score, lane);
    } else {
      of_chosen = row.share(lane < kChoices, score, largest, total);
    }
    of_chosen *= row.factor(own);
    return TL_SHARED > 0 && lane >= kChoices ? of_shared : of_chosen;
  }

 private:
  // SparseMixer's share of the lane's expert, which has this `score`: that of a softmax over the experts that are not
  // chosen before it and not far from it.
  __device__ __forceinline__ float mixed(const ScoreRow& row, float score, int lane) const {
    u32 left = 0xffffffffu;  // bit i is cleared when the lane's i-th expert is chosen
    float share = 0.0f;
#pragma unroll 1
    for (int slot = 0; slot < kChoices; ++slot) {
      const float best = __shfl_sync(0xffffffffu, score, slot);
      const int chosen = __shfl_sync(0xffffffffu, expert, slot);
      float powers = 0.0f;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        const int e = i * 32 + lane;
        if (e >= kCandidates) break;
        const float other = row[e];
        if ((left >> i & 1) != 0 && !row.is_far(other, best)) powers += __expf(other - best);
        if (e == chosen) left &= ~(1u << i);
      }
      powers = warp_sum(powers);
      if (lane == slot) share = row.scale / powers;
    }
    return share;
  }
};

}  // namespace tl
