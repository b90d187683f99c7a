// The experts of each of any number of rows, and the order of rows by expert (cuda/chosen_experts.cuh).
//
// Bytes: 8 * experts a row. Floor: bytes / bandwidth (8,192 rows of 128 experts: 8 MB, 2 us), and latency. A warp a
// row; the rows of an expert are counted as they come, so that their order is another one each time, which changes no
// result; the last block lists groups of at most TL_GROUP_ROWS rows. Rows of padding choose nothing. Launch: TL_THREADS
// threads, a block for every TL_THREADS / 32 rows. Macros: TL_THREADS, TL_GROUP_ROWS, and those of router/scoring.cuh
// and router/local.cuh.
#include "cuda/async.cuh"
#include "router/chosen.cuh"
#include "router/count.cuh"

namespace tl {

// Exclusive sums of a value over the lanes; `total` is that of all.
__device__ __forceinline__ int sum_before(int value, int lane, int& total) {
  int sum = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, distance);
    if (lane >= distance) sum += other;
  }
  total = __shfl_sync(0xffffffffu, sum, 31);
  return sum - value;
}

// By one warp: where the rows of each expert begin, and their groups. Counts are zero afterwards, for the next step.
__device__ __forceinline__ void list_groups(int* first, int* list, int* counts, Tally tally, int lane) {
  int rows = 0, groups = 0, read = 0;
  for (int base = 0; base < kLocalExperts; base += 32) {
    const int e = base + lane;
    int count = 0, all_rows, all_groups;
    if (e < kLocalExperts) {
      count = __ldcg(counts + e);
      counts[e] = 0;
    }
    const int begin = rows + sum_before(count, lane, all_rows);
    int group = groups + sum_before(ceil_div(count, TL_GROUP_ROWS), lane, all_groups);
    if (e < kLocalExperts) first[e] = begin;
    if (count > 0) tally.add_choices(e, count);
    read += __popc(__ballot_sync(0xffffffffu, count > 0));
    for (int row = 0; row < count; row += TL_GROUP_ROWS, ++group) {
      reinterpret_cast<ExpertRows*>(list + 4)[group] = {e, begin + row, begin + min_of(row + TL_GROUP_ROWS, count), 0};
    }
    rows += all_rows, groups += all_groups;
  }
  if (lane > 0) return;
  list[0] = groups;
  int choices[kRuns];
#pragma unroll
  for (int run = 0; run < kRuns; ++run) {
    choices[run] = __ldcg(counts + kLocalExperts + 1 + run);
    counts[kLocalExperts + 1 + run] = 0;
  }
  tally.add_step(read, largest_of_runs(choices));
}

}  // namespace tl

// `counts` [kLocalExperts + 1 + kRuns] is zero before and after: rows of each expert, blocks that are done, and choices
// of the experts of each run of ranks.
extern "C" __global__ void __launch_bounds__(TL_THREADS)
    sort_by_expert(int* ids, int* within, int* first, float* shares, int* list, int* counts,
                   unsigned long long* counted, const float* scores, const float* bias, const float* correction,
                   float scale, const tl::RankTable* ranks, const int* cache_slots, int spare, int rows) {
  using namespace tl;
  __shared__ int arrived;
  __shared__ int of_runs[kRuns];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = blockIdx.x * (TL_THREADS / 32) + warp;
  if (threadIdx.x < kRuns) of_runs[threadIdx.x] = 0;
  __syncthreads();
  wait_for_previous_kernel();
  allow_next_kernel();
  if (row < rows) {
    const bool is_left_out = is_padding(cache_slots, spare, row);
    const Chosen chosen({scores + static_cast<u64>(row) * TL_SCORES, bias, correction, scale}, lane);
    for (int run = 0; run < kRuns; ++run) {
      const int choices = choices_of_run(chosen.expert, run, lane);
      if (lane == 0 && !is_left_out) atomicAdd(&of_runs[run], choices);
    }
    if (lane < kTopK) {
      const int at = row * kTopK + lane;
      const int expert = is_left_out ? -1 : local_number(chosen.expert, ranks);
      ids[at] = expert;
      shares[at] = chosen.share;
      if (expert >= 0) within[at] = atomicAdd(counts + expert, 1);
    }
  }
  __syncthreads();
  if (threadIdx.x < kRuns) atomicAdd(counts + kLocalExperts + 1 + threadIdx.x, of_runs[threadIdx.x]);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) arrived = atomicAdd(counts + kLocalExperts, 1);
  __syncthreads();
  if (arrived != static_cast<int>(gridDim.x) - 1 || warp > 0) return;
  __threadfence();
  list_groups(first, list, counts, Tally{counted}, lane);
  if (lane == 0) counts[kLocalExperts] = 0;
}
