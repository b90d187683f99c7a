// Copies the list that a block of a GEMV kernel makes (router/chosen_list.cuh) to global memory, to be looked at: ids,
// shares, and for each listed expert its index, its rows, and the slots of TL_TOKENS rows.
//
// Launch: a block of 32 * TL_CONSUMER_WARPS threads. Macros: TL_CONSUMER_WARPS, and those of router/chosen_list.cuh.
#include "router/chosen_list.cuh"

extern "C" __global__ void list_chosen(int* ids, float* shares, int* listed, unsigned long long* counted,
                                       const float* scores, const float* score_bias, const float* correction,
                                       float score_scale, float threshold, const tl::RankTable* ranks,
                                       const int* cache_slots, int spare, int rows, const float* factors) {
  using namespace tl;
  __shared__ ChosenList list;
  const LaneTerms terms(score_bias, correction, threadIdx.x % 32);
  const StepChoice choice{
      {scores, score_bias, score_scale, threshold, factors}, terms, first_local(ranks), cache_slots, spare, rows};
  list.clear();
  __syncthreads();
  list.choose(choice);
  __syncthreads();
  list.add_shares(choice);
  __syncthreads();
  if (threadIdx.x < 32) list.count_step(choice, Tally{counted});
  for (int i = threadIdx.x; i < rows * kTopK; i += kConsumerThreads) {
    ids[i] = local_number(list.choices[i], choice.first_local);
    shares[i] = list.shares[i];
  }
  if (threadIdx.x > 0) return;
  *listed++ = list.count;
  for (int i = 0; i < list.count; ++i) {
    const ChosenExpert& expert = list.experts[i];
    *listed++ = expert.expert;
    *listed++ = static_cast<int>(expert.rows);
    for (int row = 0; row < TL_TOKENS; ++row) *listed++ = expert.slots[row];
  }
}
