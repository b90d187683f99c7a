// RotaryTable: cos, sin = scale * cos, sin(position * inv_freq), float32; and the slot of each token in the paged
// cache. Once per step, for all layers.
//
// A token that was sampled last by a sequence which it ended (last_tokens[token_slots[t]] is a complement) needs no
// attention: its sequence's past_lens become 0, so that attention reads one token. What comes of it, keys and values of
// further layers too, is wrong, and nobody may use it.
//
// Bytes: 4 * head_dim a token. FLOPs: the range reduction of large angles, some hundred an angle. Floor: latency, about
// 2 us. Launch: grid = tokens, TL_HALF_DIM threads (the precise cosf and sinf: positions reach 10^6 radians).
// Macros: TL_HALF_DIM, TL_PAGE.
#include "cuda/async.cuh"

extern "C" __global__ void rotary_table(float* cos, float* sin, int* slots, int* past_lens, const int* position_ids,
                                        const int* token_slots, const int* cu_seqlens, const int* block_tables,
                                        const int* last_tokens, const float* inv_freq, int num_seqs, int max_blocks,
                                        float scale) {
  tl::wait_for_previous_kernel();
  tl::allow_next_kernel();
  const int token = blockIdx.x, i = threadIdx.x, position = position_ids[token];
  const float angle = static_cast<float>(position) * inv_freq[i];
  cos[token * TL_HALF_DIM + i] = scale * cosf(angle);
  sin[token * TL_HALF_DIM + i] = scale * sinf(angle);
  if (i > 0) return;
  int low = 0, high = num_seqs - 1;  // the sequence that owns the token
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (cu_seqlens[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int slot = token_slots[token];
  if (slot >= 0 && last_tokens[slot] < 0) past_lens[low] = 0;
  const int block = block_tables[static_cast<tl::u64>(low) * max_blocks + position / TL_PAGE];
  slots[token] = block * TL_PAGE + position % TL_PAGE;
}
