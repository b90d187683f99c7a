// Mamba2 of a token after the other; see cuda/replay_rule.cuh.
//
// Launch: see cuda/replay_tokens.cuh.
#include "cuda/replay_tokens.cuh"
#include "mamba2/rule.cuh"

extern "C" __global__ void TL_CLUSTER_DIMS(tl::kBlocks) __launch_bounds__(TL_THREADS, TL_BLOCKS_AT_ONCE)
    mamba2(tl::u16* y, float* states, const int* cu_seqlens, const int* past_lens, const int* tables, int table_stride,
           const tl::u16* xbc, const tl::u16* dt, const float* a_log, const float* dt_bias, const float* d,
           float min_step, float max_step, int num_seqs) {
  using namespace tl;
  const StatePlaces places{states, cu_seqlens, past_lens, tables, table_stride};
  replay_tokens(places, TL_HEADS, num_seqs,
                [&](int head) { return state_space(y, xbc, dt, a_log, dt_bias, d, min_step, max_step, head); });
}
