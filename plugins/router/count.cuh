// What a Router counts in its tally (router/tally.cuh), and which rows of a step count.
//
// Macros: those of router/local.cuh.
#pragma once

#include "router/local.cuh"
#include "router/tally.cuh"

namespace tl {

constexpr int kRuns = kExperts / kLocalExperts;  // of ranks that have the same experts

// Whether a row fills a decode step up. `cache_slots` are where keys and values of each row go, of padding from `spare`
// on; null in steps without padding.
__device__ __forceinline__ bool is_padding(const int* cache_slots, int spare, int row) {
  return cache_slots != nullptr && cache_slots[row] >= spare;
}

struct Tally {
  unsigned long long* counts;

  // `rows` rows have chosen an expert of the rank.
  __device__ __forceinline__ void add_choices(int expert, int rows) const { atomicAdd(counts + expert, rows); }
  // That many experts of the rank were chosen by some row of the step.
  __device__ __forceinline__ void add_read(int experts) const {
    atomicAdd(counts + kLocalExperts + kExpertsRead, experts);
  }
  // Once for a step; one whose rows are all padding does not count.
  __device__ __forceinline__ void add_step(int busiest) const {
    if (busiest == 0) return;
    atomicAdd(counts + kLocalExperts + kSteps, 1);
    atomicAdd(counts + kLocalExperts + kBusiestChoices, busiest);
  }
};

// Of a warp whose lanes below kTopK have a row's choices: how many are experts of the ranks of `run`.
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
