// How decode attention divides its work among one wave of blocks.
//
// A pair is a KV head of an item: all new tokens of a sequence or, if they have more rows than a tile holds, some of
// them (items.cuh). A KV head that too many query heads share counts as several, one for each section (sections.cuh).
// Pairs are numbered item by item. If there are enough pairs for all blocks and none is much longer than the rest,
// pairs stay whole: a block's warps form up to eight teams, which take pairs in turn, so that the end of one pair
// delays no other. A block's teams begin with neighbouring pairs, heads of one sequence, whose keys are contiguous.
// Short pairs also stay whole if there is a team for each, because exchanging results between blocks takes as long as
// kExchangeChunks more chunks in one block. Otherwise a block is one team, and pairs are split into units of a fixed
// number of tokens. Each block takes an equal run of units whatever the lengths, so that it may end one pair, do
// several, and begin another.
#pragma once

#include "paged_attention/items.cuh"
#include "paged_attention/seen_keys.cuh"

namespace tl {

constexpr int kExchangeChunks = 3;  // 4 us on an H200

// Chunks have 1 << kBlockChunkShift tokens if a block is one team; a block may form up to 1 << kMaxTeamShift teams.
// Items are of the type Items (items.cuh).
template <int kKvHeads_, class Items, int kBlockChunkShift, int kMaxTeamShift, int kPage>
struct SplitTable : Items {
  static constexpr int kKvHeads = kKvHeads_;
  using Items::count_of, Items::lengths;
  int first_unit[Items::kMaxItems + 1];  // first unit of each item, if pairs are split
  int num_items, window;
  int team_shift, chunk_shift;  // log2 of the teams of a block and of the tokens of a chunk
  bool whole;

  __device__ __forceinline__ int teams() const { return 1 << team_shift; }
  __device__ __forceinline__ int chunk_tokens() const { return 1 << chunk_shift; }
  __device__ __forceinline__ int num_pairs() const { return num_items * kKvHeads; }
  // The token at which the chunks of an item of `count` tokens start: the start of the first token's window, rounded
  // down to the start of a cache block or of a warp's part of a block.
  __device__ __forceinline__ int first_token(int length, int count) const {
    constexpr int kMultiple = min_of(kPage, 32);
    return window_start(length - count, window) / kMultiple * kMultiple;
  }
  __device__ __forceinline__ int num_chunks(int length, int count) const {
    return length - first_token(length, count) + chunk_tokens() - 1 >> chunk_shift;
  }
  __device__ __forceinline__ int num_chunks(int item) const { return num_chunks(lengths[item], count_of(item)); }

  // All threads of the block call load(); after a barrier, one warp calls build(). See Items::load.
  __device__ __forceinline__ void load(const int* past_lens, const int* cu_seqlens, int seqs, int seen_window) {
    Items::load(past_lens, cu_seqlens, seqs, num_items);
    if (threadIdx.x == 0) window = seen_window;
  }
  // Chooses how to split, and counts units if pairs are split. Called by one warp.
  __device__ void build() {
    Items::divide(num_items, most_smaller_items());
    choose();
    __syncwarp();
    if (!whole) count_units();
  }

  // The most items that may be smaller: with a block for each pair, if pairs are so short that they stay whole.
  __device__ int most_smaller_items() const {
    if constexpr (!Items::kHasSmaller) return 0;
    int total, longest;
    count_tokens(total, longest);
    return longest < 1 + kExchangeChunks << kBlockChunkShift ? gridDim.x / kKvHeads : 0;
  }
  // Chooses whole pairs if that keeps four fifths of the blocks busy to the end and no pair takes much longer than a
  // block's share, or if every team has at most one pair and ends sooner than blocks that share pairs.
  __device__ void choose() {
    const int blocks = gridDim.x, pairs_per_block = max_of(1, ceil_div(num_pairs(), blocks));
    const int wanted = pairs_per_block > 4 ? 3 : pairs_per_block > 2 ? 2 : pairs_per_block - 1;
    const int shift = min_of(wanted, kMaxTeamShift);
    int total, longest;
    count_tokens(total, longest);
    const bool are_alike = static_cast<u64>(longest) * (blocks << shift) <= static_cast<u64>(total) * (2 * kKvHeads);
    // How many chunks take as long as a block's share and the exchange.
    const u64 chunks = (static_cast<u64>(total) * kKvHeads >> kBlockChunkShift) / blocks + 1 + kExchangeChunks;
    const bool are_short = pairs_per_block <= 1 << shift && longest < chunks << kBlockChunkShift - shift;
    const bool stay = are_short || (5 * num_pairs() >= 4 * pairs_per_block * blocks && are_alike);
    if (threadIdx.x % 32 == 0) {
      whole = stay;
      team_shift = stay ? shift : 0;
      chunk_shift = kBlockChunkShift - team_shift;
    }
  }
  // Counts the visible tokens of all items, and of the longest.
  __device__ void count_tokens(int& total, int& longest) const {
    total = longest = 0;
    for (int i = threadIdx.x % 32; i < num_items; i += 32) {
      const int seen = lengths[i] - first_token(lengths[i], count_of(i));
      total += seen;
      longest = max_of(longest, seen);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      total += __shfl_xor_sync(0xffffffffu, total, offset);
      longest = max_of(longest, __shfl_xor_sync(0xffffffffu, longest, offset));
    }
  }
  // Computes first_unit: each lane sums a run of items; then one scan goes over the lanes.
  __device__ void count_units() {
    const int lane = threadIdx.x % 32, run = ceil_div(num_items, 32), begin = lane * run;
    int sum = 0;
    for (int i = begin; i < begin + run && i < num_items; ++i) sum += num_chunks(i) * kKvHeads;
    int before = sum;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, before, offset);
      if (lane >= offset) before += other;
    }
    before -= sum;
    for (int i = begin; i < begin + run && i < num_items; ++i) {
      first_unit[i] = before;
      before += num_chunks(i) * kKvHeads;
    }
    if (begin < num_items && begin + run >= num_items) first_unit[num_items] = before;
  }

  __device__ __forceinline__ int find(int unit) const {
    int low = 0, high = num_items - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_unit[middle] <= unit) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

// A chunk of a pair. next() advances to the next chunk or, from a pair's last, to the first chunk of the pair `stride`
// further.
template <class Table>
struct Cursor {
  const Table* table;
  int stride, pair;
  int chunk = 0, end_chunk = 0;     // chunk of the item; end_chunk is one past its last
  int first_token = 0, length = 0;  // where the item's first chunk starts, and its last one ends

  __device__ __forceinline__ Cursor(const Table& t, int first_pair, int step)
      : table(&t), stride(step), pair(first_pair) {
    enter();
  }
  __device__ __forceinline__ int item() const { return pair / Table::kKvHeads; }
  __device__ __forceinline__ int seq() const { return table->seq_of(item()); }
  __device__ __forceinline__ int count() const { return table->count_of(item()); }  // the item's new tokens
  __device__ __forceinline__ int head() const { return pair % Table::kKvHeads; }
  __device__ __forceinline__ void enter() {
    if (pair >= table->num_pairs()) return;
    length = table->lengths[item()];
    first_token = table->first_token(length, count());
    chunk = 0;
    end_chunk = table->num_chunks(length, count());
  }
  __device__ __forceinline__ void next() {
    if (++chunk < end_chunk) return;
    pair += stride;
    enter();
  }
};

// The work of one team: `units` chunks from `cursor` on. If pairs are split, also the blocks that share a pair.
template <class Table>
struct Share {
  Cursor<Table> cursor;
  int units = 0;
  int all_units = 0, workers = 0;  // units of the launch, if pairs are split; blocks that have at least one unit

  __device__ __forceinline__ Share(const Table& table, int team) : cursor(table, 0, 1) {
    const int block = blockIdx.x, blocks = gridDim.x;
    if (table.whole) {
      cursor = Cursor<Table>(table, team + block * table.teams(), table.teams() * blocks);
      for (int pair = cursor.pair; pair < table.num_pairs(); pair += cursor.stride) {
        units += table.num_chunks(pair / Table::kKvHeads);
      }
      return;
    }
    all_units = table.first_unit[table.num_items];
    workers = min_of(all_units, blocks);
    if (block >= workers) return;
    const int begin = first_unit_of(block), item = table.find(begin);
    units = first_unit_of(block + 1) - begin;
    const int chunks = table.num_chunks(item), local = begin - table.first_unit[item];
    cursor = Cursor<Table>(table, item * Table::kKvHeads + local / chunks, 1);
    cursor.chunk += local % chunks;
  }
  __device__ __forceinline__ int first_unit_of(int worker) const {
    return static_cast<int>(static_cast<u64>(worker) * all_units / workers);
  }
  __device__ __forceinline__ int worker_of(int unit) const {
    return static_cast<int>(((static_cast<u64>(unit) + 1) * workers - 1) / all_units);
  }
  // The first and last block that share a pair; equal if pairs are whole.
  __device__ __forceinline__ int2 workers_of(const Table& table, int pair) const {
    if (table.whole) return make_int2(0, 0);
    const int item = pair / Table::kKvHeads, chunks = table.num_chunks(item);
    const int begin = table.first_unit[item] + pair % Table::kKvHeads * chunks;
    return make_int2(worker_of(begin), worker_of(begin + chunks - 1));
  }
};

}  // namespace tl
