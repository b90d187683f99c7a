// What a Router counts in its tally (router/tally.cuh), and which rows of a step it counts.
//
// Macros: those of router/local.cuh.
#pragma once

#include "router/local.cuh"
#include "router/tally.cuh"

namespace tl {

constexpr int kEpSize = kExperts / kLocalExperts;  // ranks with the same experts have the same EP rank

// Whether a row is padding of a decode step. `cache_slots` has the cache slot of each row, and is null in steps without
// padding; padding rows have slots from `spare` on.
__device__ __forceinline__ bool is_padding(const int* cache_slots, int spare, int row) {
  return cache_slots != nullptr && __ldcg(cache_slots + row) >= spare;
}

struct Tally {
  unsigned long long* counts;

  // Counts that `rows` rows have chosen `expert` of the rank.
  __device__ __forceinline__ void add_choices(int expert, int rows) const { atomicAdd(counts + expert, rows); }
  // Counts `experts` experts of the rank that some row of the step has chosen.
  __device__ __forceinline__ void add_read(int experts) const {
    atomicAdd(counts + kLocalExperts + kExpertsRead, experts);
  }
  // Counts a step, and the choices of its busiest EP rank. Called once per step; a step of padding rows alone is not
  // counted.
  __device__ __forceinline__ void add_step(int busiest) const {
    if (busiest == 0) return;
    atomicAdd(counts + kLocalExperts + kSteps, 1);
    atomicAdd(counts + kLocalExperts + kBusiestChoices, busiest);
  }
};

}  // namespace tl
