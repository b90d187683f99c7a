// Sorts the rows of a large step by the experts that router/choose_rows.cuh has chosen.
//
// Bytes: 8 * top_k per row. Floor: latency. One cluster; router/expert_sort.cuh describes its launch.
#include "cuda/async.cuh"
#include "router/expert_sort.cuh"

// `places` [rows, kTopK] holds choices at first (router/choose_rows.cuh), and places at the end.
extern "C" __global__ void TL_CLUSTER_DIMS(tl::kSortBlocks) __launch_bounds__(TL_THREADS)
    sort_chosen(int* places, int* list, unsigned long long* counted, const tl::RankTable* ranks, int rows) {
  using namespace tl;
  extern __shared__ __align__(16) int memory[];
  const BlockRows mine(rows);
  const ExpertSort sort(memory);
  sort.clear();
  __syncthreads();
  wait_for_previous_kernel();
  allow_next_kernel();
  int* choices = places + static_cast<u64>(mine.first) * kTopK;
  sort.run(choices, choices, mine.count * kTopK, list, Tally{counted}, ranks);
}
