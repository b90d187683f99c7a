// PagedLoad: y[t] is the cached row of the position before token t; zeros at position 0. Elements have 16 bits.
// slots[t] is the place of token t, block * TL_PAGE + offset. The row before it is the previous place, except for the
// first token of a block, for which the sequence's first block table is read; those of sequences are table_stride
// apart.
//
// Bytes: 4 * hidden per token. FLOPs: none. Floor: latency, about 2 us, for a few tokens; 67 MB, 15 us for 4096 tokens
// of 4096 features. Launch: grid = tokens, up to hidden / 8 threads. Macros: TL_HIDDEN, TL_PAGE.
#include "cuda/async.cuh"
#include "cuda/sequence_of.cuh"

extern "C" __global__ void paged_load(tl::u16* y, const tl::u16* cache, const int* slots, const int* position_ids,
                                      const int* cu_seqlens, const int* block_tables, int num_seqs, int table_stride) {
  tl::wait_for_previous_kernel();
  tl::allow_next_kernel();
  static_assert(TL_HIDDEN % 8 == 0, "rows must be multiples of 16 bytes");
  const int token = blockIdx.x, position = position_ids[token];
  tl::u64 slot = slots[token] - 1;
  if (position > 0 && position % TL_PAGE == 0) {
    const tl::u64 sequence = tl::sequence_of(token, cu_seqlens, num_seqs);
    const tl::u64 block = block_tables[sequence * table_stride + position / TL_PAGE - 1];
    slot = block * TL_PAGE + TL_PAGE - 1;
  }
  const uint4* from = reinterpret_cast<const uint4*>(cache + slot * TL_HIDDEN);
  uint4* to = reinterpret_cast<uint4*>(y + static_cast<tl::u64>(token) * TL_HIDDEN);
  for (int i = threadIdx.x; i < TL_HIDDEN / 8; i += blockDim.x) to[i] = position > 0 ? from[i] : make_uint4(0, 0, 0, 0);
}
