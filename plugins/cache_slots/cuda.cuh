// Cache slots: the places of tokens' keys and values in the paged cache, computed once per step for all layers. Token t
// of sequence s at position p has slot block_tables[s, g, p / TL_PAGE] * TL_PAGE + p % TL_PAGE in cache group g.
//
// A token that ended its sequence when it was sampled (last_tokens[token_slots[t]] is negative) needs no attention:
// its sequence's past_lens become 0, so that attention reads one token. Its results, including keys and values of later
// layers, are wrong and must not be used. With several ranks, all read the tokens on the rank that draws them.
//
// Bytes: 4 written and 4 read per token and group. FLOPs: none. Floor: latency, about 2 us. Launch: a thread for each
// token. Macros: TL_PAGE, TL_GROUPS.
#include "cuda/rank_memory.cuh"
#include "cuda/sequence_of.cuh"

extern "C" __global__ void cache_slots(int* slots, int* past_lens, const int* position_ids, const int* token_slots,
                                       const int* cu_seqlens, const int* block_tables, const int* last_tokens,
                                       const tl::RankTable* ranks, int num_tokens, int num_seqs, int max_blocks) {
  tl::wait_for_previous_kernel();
  tl::allow_next_kernel();
  const int token = blockIdx.x * blockDim.x + threadIdx.x;
  if (token >= num_tokens) return;
  if (ranks != nullptr) last_tokens = tl::where_drawn(ranks, last_tokens);
  const int sequence = tl::sequence_of(token, cu_seqlens, num_seqs), position = position_ids[token];
  const int sampler = token_slots[token];
  if (sampler >= 0 && last_tokens[sampler] < 0) past_lens[sequence] = 0;
  for (int group = 0; group < TL_GROUPS; ++group) {
    const int* table = block_tables + (static_cast<tl::u64>(sequence) * TL_GROUPS + group) * max_blocks;
    slots[static_cast<tl::u64>(group) * num_tokens + token] = table[position / TL_PAGE] * TL_PAGE + position % TL_PAGE;
  }
}
