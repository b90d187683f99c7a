// Mamba2 of long sequences; see cuda/replay_rule.cuh.
//
// Launch: grid = (heads * kBlocks, sequences with chunks) in clusters of kSharers blocks, kReplayThreads threads,
// TL_SHARED_BYTES of dynamic shared memory.
#include "cuda/replay_chunks.cuh"
#include "mamba2/rule.cuh"

extern "C" __global__ void TL_CLUSTER_DIMS(tl::kSharers) __launch_bounds__(tl::kReplayThreads, tl::kBlocksAtOnce)
    mamba2_chunks(tl::u16* y, float* states, const int* cu_seqlens, const int* past_lens, const int* tables,
                  int table_stride, const tl::u16* xbc, const tl::u16* dt, const float* a_log, const float* dt_bias,
                  const float* d, float min_step, float max_step, int num_seqs) {
  using namespace tl;
  const StatePlaces places{states, cu_seqlens, past_lens, tables, table_stride};
  const int head = blockIdx.x / kBlocks;
  const StateSpace from = state_space(y, xbc, dt, a_log, dt_bias, d, min_step, max_step, head);
  const StateSpan span = sequence_with_chunks(places, num_seqs, blockIdx.y);
  wait_for_previous_kernel();
  allow_next_kernel();
  if (span.count > 0) replay_chunks(from, places.state(span.block) + head * kStateSize, span, blockIdx.x % kBlocks);
}
