// Writes a list of ExpertRows (cuda/chosen_experts.cuh) as if all rows of a step had chosen experts evenly: the rank's
// experts have their average share, and their numbers of rows differ by at most one. Shared experts, the last ones,
// have all rows. Grouped products are timed with this list.
//
// Bytes: 16 for each group. Floor: latency. Launch: one block of TL_THREADS threads, with one or several experts each.
// Macros: those of cuda/chosen_experts.cuh, TL_LOCAL_EXPERTS (of the rank), TL_SHARED (how many of
// these are shared), TL_GROUP_ROWS (the most rows of a group).
#include "cuda/async.cuh"
#include "cuda/chosen_experts.cuh"

namespace tl {

__device__ __forceinline__ int groups_of(int rows) { return ceil_div(rows, TL_GROUP_ROWS); }

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS) even_groups(int* list, int rows) {
  using namespace tl;
  constexpr int kChosen = TL_LOCAL_EXPERTS - TL_SHARED;  // the rank's experts among which rows choose
  constexpr long long kChoices = static_cast<long long>(kTopK - TL_SHARED) * kChosen;
  const int choices = static_cast<int>(rows * kChoices / (kExperts - TL_SHARED));
  const int least = choices / kChosen, busy = choices % kChosen;  // `busy` experts have one row more
  ExpertRows* records = reinterpret_cast<ExpertRows*>(list + 4);
  wait_for_previous_kernel();
  allow_next_kernel();
  for (int expert = threadIdx.x; expert < TL_LOCAL_EXPERTS; expert += TL_THREADS) {
    const int chosen = min_of(expert, kChosen), before = min_of(chosen, busy), shared = expert - chosen;
    const int first = chosen * least + before + shared * rows;
    const int end = first + (expert < kChosen ? least + (expert < busy) : rows);
    int group = before * groups_of(least + 1) + (chosen - before) * groups_of(least) + shared * groups_of(rows);
    for (int row = first; row < end; row += TL_GROUP_ROWS) {
      records[group++] = {expert, row, min_of(row + TL_GROUP_ROWS, end), 0};
    }
    if (expert == TL_LOCAL_EXPERTS - 1) list[0] = group;
  }
}
