// Embedding: y[t] = scale * weight[id of t], 16-bit elements. A token whose slot is not negative is the one that its
// sequence sampled last, last_tokens[token_slots[t]] (or its complement), which then never left the card; any other is
// token_ids[t].
//
// Bytes: 4 * hidden a token. FLOPs: 1 an element. Floor: latency (about 2 us) for a few tokens; 67 MB, 15 us for 4096
// tokens of 4096 features. Launch: grid = tokens, up to hidden / 8 threads. Macros: TL_HIDDEN, TL_FP16.
#include "cuda/async.cuh"
#include "cuda/types.cuh"

extern "C" __global__ void embedding(tl::u16* y, const int* token_ids, const int* token_slots, const int* last_tokens,
                                     const tl::u16* weight, float scale) {
  tl::wait_for_previous_kernel();
  tl::allow_next_kernel();
  const tl::u64 row = blockIdx.x;
  const int slot = token_slots[row], id = slot >= 0 ? last_tokens[slot] : token_ids[row];
  const tl::u64 token = id < 0 ? ~id : id;
  static_assert(TL_HIDDEN % 8 == 0, "rows must be multiples of 16 bytes");
  const uint4* from = reinterpret_cast<const uint4*>(weight + token * TL_HIDDEN);
  uint4* to = reinterpret_cast<uint4*>(y + row * TL_HIDDEN);
  for (int i = threadIdx.x; i < TL_HIDDEN / 8; i += blockDim.x) {
    float values[8];
    tl::unpack8(from[i], values);
    for (float& value : values) value *= scale;
    to[i] = tl::pack8(values);
  }
}
