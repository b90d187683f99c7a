// GatedDeltaRule of a token after the other; see cuda/replay_rule.cuh.
//
// Launch: see cuda/replay_tokens.cuh.
#include "cuda/replay_tokens.cuh"
#include "gated_delta_rule/rule.cuh"

extern "C" __global__ void TL_CLUSTER_DIMS(tl::kBlocks) __launch_bounds__(TL_THREADS, TL_BLOCKS_AT_ONCE)
    gated_delta_rule(tl::u16* y, float* states, const int* cu_seqlens, const int* past_lens, const int* tables,
                     int table_stride, const tl::u16* qkv, const tl::u16* a, const tl::u16* b, const float* a_log,
                     const float* dt_bias, float scale, float epsilon, int num_seqs) {
  using namespace tl;
  const StatePlaces places{states, cu_seqlens, past_lens, tables, table_stride};
  replay_tokens(places, TL_VALUE_HEADS, num_seqs,
                [&](int head) { return delta_rule(y, qkv, a, b, a_log, dt_bias, scale, epsilon, head); });
}
