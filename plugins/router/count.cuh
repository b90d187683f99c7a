// What a Router counts in its tally (router/tally.cuh), and which rows of a step it counts.
//
// Macros: those of router/local.cuh.
#pragma once

#include "router/local.cuh"
#include "router/tally.cuh"

namespace tl {

constexpr int kRuns = kExperts / kLocalExperts;  // groups of ranks; the ranks of a group have the same experts

// Whether a row is padding of a decode step. `cache_slots`: the cache slot of each row; padding rows have slots from
// `spare` on. Null in steps without padding.
__device__ __forceinline__ bool is_padding(const int* cache_slots, int spare, int row) {
  return cache_slots != nullptr && cache_slots[row] >= spare;
}

struct Tally {
  unsigned long long* counts;

  // Counts that `rows` rows have chosen `expert` of the rank.
  __device__ __forceinline__ void add_choices(int expert, int rows) const { atomicAdd(counts + expert, rows); }
  // Counts `experts` experts of the rank that some row of the step has chosen.
  __device__ __forceinline__ void add_read(int experts) const {
    atomicAdd(counts + kLocalExperts + kExpertsRead, experts);
  }
  // Called once per step. A step with only padding rows is not counted.
  __device__ __forceinline__ void add_step(int busiest) const {
    if (busiest == 0) return;
    atomicAdd(counts + kLocalExperts + kSteps, 1);
    atomicAdd(counts + kLocalExperts + kBusiestChoices, busiest);
  }
};

// Counts the choices of a row that are experts of group `run`. Lanes below kTopK have the choices.
__device__ __forceinline__ int choices_of_run(int expert, int run, int lane) {
  return __popc(__ballot_sync(0xffffffffu, lane < kTopK && expert / kLocalExperts == run));
}

__device__ __forceinline__ int largest_of_runs(const int* choices) {
  int largest = 0;
#pragma unroll
  for (int run = 0; run < kRuns; ++run) largest = max_of(largest, choices[run]);
  return largest;
}

}  // namespace tl
