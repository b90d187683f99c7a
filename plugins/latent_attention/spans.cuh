// The pieces of work of latent attention: spans of the tiles of keys that an item of rows sees.
//
// An item is up to 64 rows: kTokens consecutive tokens of a sequence times all heads, or kBlockHeads of the heads of
// one token. Row r is token r / kBlockHeads, head r % kBlockHeads of those. A tile is kStep keys.
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
  int first, count;                 // count tokens from packed token `first`
  int position;                     // of the first of them in its sequence
  int begin, end;                   // tiles
  int worker = 0, num_workers = 1;  // which of the blocks that share the item this is
  int pair = 0;                     // the item's number, where several blocks may share one

  __device__ __forceinline__ int keys() const { return position + count; }
  // The row of all queries that row r is; -1 of none.
  __device__ __forceinline__ int row(int r) const {
    const int token = r / kBlockHeads, head = head_block * kItemRows + r % kBlockHeads;
    return token < count && head < kHeads ? (first + token) * kHeads + head : -1;
  }
};

#ifdef TL_MAX_SEQS

// Of sequences of one new token each: split.cuh shares all tiles among the blocks of a launch.
using Table = SplitTable<kHeadBlocks, TL_MAX_SEQS, kStepShift, 0, TL_PAGE>;

struct Spans {
  Share<Table> share;
  const Table& table;
  int left;

  __device__ __forceinline__ explicit Spans(const Table& t) : share(t, 0), table(t), left(share.units) {}
  // The next one, if there is another.
  __device__ __forceinline__ bool next(Span& span) {
    if (left == 0) return false;
    Cursor<Table>& cursor = share.cursor;
    const int2 workers = share.workers_of(table, cursor.pair);
    span.seq = span.first = cursor.seq();
    span.head_block = cursor.head();
    span.count = 1;
    span.position = cursor.length - 1;
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

// Of sequences of any number of tokens: a block has an item, of which there is one for each of its numbers at most.
// Sequences are cut from their ends, so that items that see most come first.
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
