// Chooses the experts of each row of a step of at most some hundred rows, and sorts the rows by expert
// (cuda/chosen_experts.cuh).
//
// Bytes: 8 * experts per row. Floor: latency, about 3 us: the kernel waits for the scores, the choice takes top_k
// steps of a warp, and the blocks synchronize once. One cluster: a warp takes one row, or several in turn; its choices
// stay in shared memory until they are sorted (router/expert_sort.cuh). Padding rows choose no experts. Launch and
// macros: those of router/expert_sort.cuh and router/scoring.cuh; dynamic shared memory also holds the choices of a
// block's rows.
#include "cuda/async.cuh"
#include "router/choose_row.cuh"
#include "router/expert_sort.cuh"

extern "C" __global__ void TL_CLUSTER_DIMS(tl::kSortBlocks) __launch_bounds__(TL_THREADS)
    sort_by_expert(int* ids, int* places, float* shares, int* list, unsigned long long* counted, const float* scores,
                   const float* bias, const float* correction, float scale, float threshold, const tl::RankTable* ranks,
                   const int* cache_slots, int spare, int rows, const float* share_factors) {
  using namespace tl;
  extern __shared__ __align__(16) int memory[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const BlockRows mine(rows);
  const ExpertSort sort(memory);
  const RowChoice choice{
      ids, shares, {scores, bias, scale, threshold, share_factors}, {bias, correction, lane}, first_local(ranks)};
  int* choices = memory + ExpertSort::kInts;
  sort.clear();
  __syncthreads();
  wait_for_previous_kernel();
  allow_next_kernel();
  for (int i = warp; i < mine.count; i += kSortWarps) {
    const int row = mine.first + i;
    const int expert = choice.of(row, is_padding(cache_slots, spare, row), lane);
    if (lane < kTopK) choices[i * kTopK + lane] = expert;
  }
  __syncthreads();
  sort.run(choices, places + mine.first * kTopK, mine.count * kTopK, list, Tally{counted}, ranks);
}
