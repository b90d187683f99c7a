// Chooses the experts of each row of a large step, which router/sort_chosen.cuh sorts next.
//
// Bytes: 8 * experts per row. Floor: bytes / bandwidth (8,192 rows of 128 experts: 8 MB, 2 us), and latency. One warp
// per row. Launch: TL_THREADS threads, a block for every TL_THREADS / 32 rows. Macros: TL_THREADS, and those of
// router/scoring.cuh and router/local.cuh.
#include "cuda/async.cuh"
#include "router/choose_row.cuh"

// `choices` [rows, kTopK]: indices among all experts, -1 in padding rows.
extern "C" __global__ void __launch_bounds__(TL_THREADS)
    choose_rows(int* ids, int* choices, float* shares, const float* scores, const float* bias, const float* correction,
                float scale, float threshold, const tl::RankTable* ranks, const int* cache_slots, int spare, int rows,
                const float* share_factors) {
  using namespace tl;
  const int lane = threadIdx.x % 32, row = blockIdx.x * (TL_THREADS / 32) + threadIdx.x / 32;
  const RowChoice choice{
      ids, shares, {scores, bias, scale, threshold, share_factors}, {bias, correction, lane}, first_local(ranks)};
  wait_for_previous_kernel();
  allow_next_kernel();
  if (row >= rows) return;
  const int expert = choice.of(row, is_padding(cache_slots, spare, row), lane);
  if (lane < kTopK) choices[row * kTopK + lane] = expert;
}
