// Spans, the units of work of latent attention: tiles of keys that the rows of an item see.
//
// An item is up to 64 rows: all heads of kTokens consecutive tokens of a sequence, or kBlockHeads of the heads of one
// token. Row r is token r / kBlockHeads, head r % kBlockHeads of the item. A tile is kStep keys.
#pragma once

#include "latent_attention/extents.cuh"
#include "paged_attention/split.cuh"

namespace tl {

constexpr int kItemRows = 64, kStepShift = 6, kStep = 1 << kStepShift;
constexpr int kHeadBlocks = ceil_div(kHeads, kItemRows), kBlockHeads = min_of(kHeads, kItemRows);
constexpr int kTokens = kItemRows / kBlockHeads;

struct Sequences {
  const int* cu_seqlens;  // [num_seqs + 1]
  const int* past_lens;
  const int* block_tables;  // [num_seqs, max_blocks]
  int num_seqs, max_blocks;
};

struct Span {
  int seq, head_block;
  int first, count;                 // `count` tokens from packed token `first` on
  int position;                     // position of token `first` in its sequence
  int begin, end;                   // tiles
  int worker = 0, num_workers = 1;  // this block among those that share the item
  int pair = 0;                     // number of the item, if several blocks may share one

  __device__ __forceinline__ int keys() const { return position + count; }
  // The index of row r among the rows of all queries; -1 if it does not exist.
  __device__ __forceinline__ int row(int r) const {
    const int token = r / kBlockHeads, head = head_block * kItemRows + r % kBlockHeads;
    return token < count && head < kHeads ? (first + token) * kHeads + head : -1;
  }
};

#ifdef TL_MAX_ITEMS

// For sequences of up to TL_NEW_TOKENS new tokens: split.cuh divides all tiles among the blocks of a launch.
constexpr int kItemTokens = min_of(TL_NEW_TOKENS, kTokens);
using Table = SplitTable<kHeadBlocks, SplitItems<TL_MAX_ITEMS, TL_NEW_TOKENS, kItemTokens>, kStepShift, 0, TL_PAGE>;

struct Spans {
  Share<Table> share;
  const Table& table;
  int left;

  __device__ __forceinline__ explicit Spans(const Table& t) : share(t, 0), table(t), left(share.units) {}
  // Advances to the next span, if there is one.
  __device__ __forceinline__ bool next(Span& span) {
    if (left == 0) return false;
    Cursor<Table>& cursor = share.cursor;
    const int2 workers = share.workers_of(table, cursor.pair);
    span.seq = cursor.seq();
    span.first = table.first_of(cursor.item());
    span.head_block = cursor.head();
    span.count = cursor.count();
    span.position = cursor.length - span.count;
    span.begin = cursor.chunk;
    span.end = min_of(cursor.end_chunk, span.begin + left);
    span.pair = cursor.pair;
    span.worker = table.whole ? 0 : static_cast<int>(blockIdx.x) - workers.x;
    span.num_workers = workers.y - workers.x + 1;
    left -= span.end - span.begin;
    cursor.chunk = span.end - 1;
    cursor.next();
    return true;
  }
};

#else

// For sequences with any number of tokens: each block has at most one item. Sequences are cut from their ends, so that
// the items that see the most keys come first.
struct Spans {
  Sequences sequences;
  bool is_first = true;

  __device__ __forceinline__ bool next(Span& span) {
    if (!is_first) return false;
    is_first = false;
    int item = blockIdx.x;
    for (int s = 0; s < sequences.num_seqs; ++s) {
      const int begin = sequences.cu_seqlens[s], length = sequences.cu_seqlens[s + 1] - begin;
      const int items = ceil_div(length, kTokens);
      if (item < items) {
        const int token = (items - 1 - item) * kTokens;
        span.seq = s;
        span.head_block = blockIdx.y;
        span.first = begin + token;
        span.count = min_of(kTokens, length - token);
        span.position = sequences.past_lens[s] + token;
        span.begin = 0;
        span.end = ceil_div(span.keys(), kStep);
        return true;
      }
      item -= items;
    }
    return false;
  }
};

#endif

}  // namespace tl
