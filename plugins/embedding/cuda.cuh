// Embedding: y[t] = scale * weight[id of t], 16-bit elements. A token whose slot is not negative is the one that its
// sequence sampled last, last_tokens[token_slots[t]] (its complement if it ended the sequence), which then never left
// the card; any other is token_ids[t], as is every token where there are no slots. Where each of several ranks has
// `vocab` rows of the table, tokens whose rows are on other ranks give zeros. If token_ids[t] is ~i, a negative number,
// the first rank gives row i of token_rows.
//
// Bytes: 4 * hidden a token. FLOPs: 1 an element. Floor: latency (about 2 us) for a few tokens; 67 MB, 15 us for 4096
// tokens of 4096 features. Launch: grid = tokens, up to hidden / 8 threads. Macros: TL_HIDDEN, TL_FP16.
#include "cuda/rank_memory.cuh"
#include "cuda/types.cuh"

extern "C" __global__ void embedding(tl::u16* y, const int* token_ids, const int* token_slots, const int* last_tokens,
                                     const tl::u16* weight, const tl::RankTable* ranks, int vocab, float scale,
                                     const tl::u16* token_rows) {
  tl::wait_for_previous_kernel();
  tl::allow_next_kernel();
  const tl::u64 row = blockIdx.x;
  int first = 0;
  if (ranks != nullptr) {
    last_tokens = tl::where_drawn(ranks, last_tokens);
    first = static_cast<int>(ranks->rank) * vocab;
  }
  const int slot = token_slots == nullptr ? -1 : token_slots[row], id = slot >= 0 ? last_tokens[slot] : token_ids[row];
  const bool is_row = slot < 0 && id < 0;
  const int token = (id < 0 ? ~id : id) - first;
  const bool is_here = is_row ? first == 0 : token >= 0 && token < vocab;
  static_assert(TL_HIDDEN % 8 == 0, "rows must be multiples of 16 bytes");
  const tl::u16* table = is_row ? token_rows : weight;
  if (is_row) scale = 1.0f;
  const uint4* from = reinterpret_cast<const uint4*>(table + (is_here ? static_cast<tl::u64>(token) * TL_HIDDEN : 0));
  uint4* to = reinterpret_cast<uint4*>(y + row * TL_HIDDEN);
  for (int i = threadIdx.x; i < TL_HIDDEN / 8; i += blockDim.x) {
    float values[8] = {};
    if (is_here) tl::unpack8(from[i], values);
    for (float& value : values) value *= scale;
    to[i] = tl::pack8(values);
  }
}
