// Chooses the experts of each of at most 16 rows, and lists the experts that some row has chosen
// (cuda/chosen_experts.cuh).
//
// Bytes: 8 * experts per row. Floor: latency, about 2 us: it waits for the scores, and the next kernel for its list.
// One block, with a warp for each row. Padding rows choose no experts. Launch: 32 * TL_ROWS threads. Macros: TL_ROWS
// (the most rows), and those of router/scoring.cuh and router/local.cuh.
#include "cuda/async.cuh"
#include "router/chosen.cuh"
#include "router/count.cuh"

namespace tl {

static_assert(TL_ROWS <= kMostListedRows);

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_ROWS * 32)
    choose_experts(int* ids, float* shares, int* list, unsigned long long* counted, const float* scores,
                   const float* bias, const float* correction, float scale, const tl::RankTable* ranks,
                   const int* cache_slots, int spare, int rows) {
  using namespace tl;
  const Tally tally{counted};
  __shared__ uint4 slots[TL_LOCAL_EXPERTS];  // kMostListedRows bytes for each expert
  __shared__ u32 chosen_by[TL_LOCAL_EXPERTS];
  __shared__ int listed[TL_LOCAL_EXPERTS];  // the experts that some row has chosen
  __shared__ int of_ep_ranks[kEpSize];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const LaneTerms terms(bias, correction, lane);
  for (int e = threadIdx.x; e < kLocalExperts; e += TL_ROWS * 32) chosen_by[e] = 0;
  if (threadIdx.x < kEpSize) of_ep_ranks[threadIdx.x] = 0;
  __syncthreads();
  wait_for_previous_kernel();
  allow_next_kernel();
  if (warp < rows) {
    const bool is_left_out = is_padding(cache_slots, spare, warp);
    const Chosen chosen({scores + warp * TL_SCORES, bias, scale}, terms, lane);
    for (int ep_rank = 0; ep_rank < kEpSize; ++ep_rank) {
      const int choices = choices_of_ep_rank(chosen.expert, ep_rank, lane);
      if (lane == 0 && !is_left_out) atomicAdd(&of_ep_ranks[ep_rank], choices);
    }
    if (lane < kTopK) {
      const int expert = is_left_out ? -1 : local_number(chosen.expert, ranks);
      ids[warp * kTopK + lane] = expert;
      shares[warp * kTopK + lane] = chosen.share;
      if (expert >= 0) {
        reinterpret_cast<unsigned char*>(slots + expert)[warp] = static_cast<unsigned char>(lane);
        atomicAdd(&chosen_by[expert], 1u << warp);
      }
    }
  }
  __syncthreads();
  if (warp > 0) return;
  int count = 0;
#pragma unroll
  for (int i = 0; i < ceil_div(kLocalExperts, 32); ++i) {
    const int e = i * 32 + lane;
    const bool is_chosen = e < kLocalExperts && chosen_by[e] != 0;
    const u32 present = __ballot_sync(0xffffffffu, is_chosen);
    if (is_chosen) listed[count + __popc(present & ((1u << lane) - 1))] = e;
    count += __popc(present);
  }
  __syncwarp();
#pragma unroll 1
  for (int i = lane; i < count; i += 32) {
    const int e = listed[i];
    const u32 by = chosen_by[e];
    uint4* to = reinterpret_cast<uint4*>(list + 4) + 2 * i;
    to[0] = make_uint4(e, by, 0, 0);
    to[1] = slots[e];
    tally.add_choices(e, __popc(by));
  }
  if (lane > 0) return;
  list[0] = count;
  tally.add_read(count);
  tally.add_step(largest_of_ep_ranks(of_ep_ranks));
}
