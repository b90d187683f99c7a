// The extents, shared memory and work items of prefill_wgmma.cuh, and the producer warp, which takes items and loads
// their keys and values.
#pragma once

#include "cuda/wgmma.cuh"
#include "paged_attention/cache.cuh"
#include "paged_attention/prefill_rows.cuh"
#include "paged_attention/sequence_search.cuh"
#include "paged_attention/wide_cache.cuh"

namespace tl {

constexpr int kDim = TL_HEAD_DIM;
// With TL_NEW_TOKENS a block has few stages and one consumer, so that two blocks fit on an SM (up to 128 elements of a
// head) and each computes while the other waits: an item may be as short as a tile.
constexpr bool kFewTokens = TL_NEW_TOKENS > 0;
constexpr int kConsumers = kFewTokens ? 1 : 2, kGroupThreads = 128, kThreads = (1 + kConsumers) * kGroupThreads;
constexpr int kQueryRows = kFewTokens ? 16 : 64;  // rows of a consumer that are copied and weighed
constexpr int kRows = kConsumers * 64,
              kTokens = kFewTokens ? min_of(TL_NEW_TOKENS, kQueryRows / kGroup) : kRows / kGroup;
constexpr int kBlocksPerSm = kFewTokens && kDim <= 128 ? 2 : 1;
constexpr int kStep = kDim <= 128 ? 128 : 64;  // keys per step; bounded by registers
// Keys and values have separate stages, because a tile's values are in use for longer. Keys and values of bytes first
// arrive in raw stages.
enum Kind { kKeys, kValues, kNoKind };
constexpr int kStages[] = {kFewTokens ? 1 : 2, kFewTokens ? 1 : kByteValues ? 2 : 3};
constexpr int kAllStages = kStages[kKeys] + kStages[kValues], kRawStages = kByteValues ? 2 : 0;
constexpr int kConvertingWarps = 3;  // in the producer's warpgroup
constexpr int kColumns = kDim / 8, kColumnBlocks = ceil_div(kDim, 64);
using KeyCopy = TokenCopy<kDim, TL_PAGE, kStep, kKeyItemBytes>;
using ValueCopy = TokenCopy<kDim, TL_PAGE, kStep, kValueItemBytes>;
using WideCopy = TokenCopy<kDim, TL_PAGE, kStep, 2, TL_KV_HEADS * TL_PAGE * kDim * 2>;
using Layout = CacheLayout<kDim, 2>;  // the layout of tiles
constexpr u32 kTileBytes = kStep * Layout::kTokenBytes;
constexpr u32 kQueryBytes = kColumnBlocks * 64 * kBlockRowBytes;
constexpr int kQueries =
    kDim <= 128 && !(kFewTokens && kByteValues) ? 2 : 1;  // items whose queries fit in shared memory
constexpr int kItems = 4;                                 // items announced ahead
constexpr u32 kTileOffset = kQueries * kConsumers * kQueryBytes, kRawOffset = kTileOffset + kAllStages * kTileBytes;
constexpr u32 kItemOffset = kRawOffset + kRawStages * ValueCopy::kBytes;
constexpr u32 kItemBytes = 32, kOrderOffset = kItemOffset + kItems * kItemBytes, kOrderBytes = 8;
constexpr u32 kBarrierOffset = kOrderOffset + kRawStages * kOrderBytes;
constexpr int kSharedBytes = kBarrierOffset + (kAllStages + kItems + kRawStages) * 16;
// Registers of the producer and the consumers, out of 168 for each of kThreads threads. With kFewTokens they are 128 if
// two blocks share an SM, else as many as consumers take.
constexpr int kProducerRegisters = kDim > 128 ? 40 : kFewTokens ? 48 : 56;
constexpr int kConsumerRegisters = kDim > 128 ? 232 : kFewTokens ? 208 : 224;
static_assert(kDim == 64 || kDim == 80 || kDim == 96 || kDim == 128 || kDim == 256);
static_assert(kGroup <= (kFewTokens ? kQueryRows : kRows));
static_assert(TL_SHARED_BYTES >= kSharedBytes, "TL_SHARED_BYTES is too small");

struct WgmmaArguments {
  PrefillArguments common;
  u32* taken;      // number of requests for an item by all blocks, beyond their first items
  WideCache wide;  // without blocks unless values are bytes
};

// The shared memory: queries of each item and consumer | stages of keys | stages of values | raw stages of bytes |
// items | for each raw stage, the kind and number of the tile that it becomes | barriers.
struct Shared {
  u32 base;

  __device__ __forceinline__ u32 query(int n, int consumer) const {
    return base + (n % kQueries * kConsumers + consumer) * kQueryBytes;
  }
  __device__ __forceinline__ u32 keys(int t) const { return base + kTileOffset + t % kStages[kKeys] * kTileBytes; }
  __device__ __forceinline__ u32 values(int t) const {
    return base + kTileOffset + (kStages[kKeys] + t % kStages[kValues]) * kTileBytes;
  }
  template <int kKind>
  __device__ __forceinline__ u32 tile(int t) const {
    return kKind == kKeys ? keys(t) : values(t);
  }
  __device__ __forceinline__ u32 item(int n) const { return base + kItemOffset + n % kItems * kItemBytes; }
  // The barriers of tile t: full when it has arrived, empty when all consumer warps have used it.
  template <int kKind>
  __device__ __forceinline__ u32 full(int t) const {
    return base + kBarrierOffset + (kKind * kStages[kKeys] + t % kStages[kKind]) * 16;
  }
  template <int kKind>
  __device__ __forceinline__ u32 empty(int t) const {
    return full<kKind>(t) + 8;
  }
  template <int kKind>
  __device__ __forceinline__ static u32 parity(int t) {
    return t / kStages[kKind] % 2;
  }
  // The barriers of item n: announced when it is in shared memory, and read when all consumer warps have read it.
  __device__ __forceinline__ u32 announced(int n) const {
    return base + kBarrierOffset + (kAllStages + n % kItems) * 16;
  }
  __device__ __forceinline__ u32 done(int n) const { return announced(n) + 8; }
  __device__ __forceinline__ static u32 item_parity(int n) { return n / kItems % 2; }

  // The barriers of use r of the ring of raw stages: full when its bytes have arrived, empty when they have been
  // dequantized.
  __device__ __forceinline__ u32 raw(int r) const { return base + kRawOffset + r % kRawStages * ValueCopy::kBytes; }
  __device__ __forceinline__ u32 order(int r) const { return base + kOrderOffset + r % kRawStages * kOrderBytes; }
  __device__ __forceinline__ u32 landed(int r) const {
    return base + kBarrierOffset + (kAllStages + kItems + r % kRawStages) * 16;
  }
  __device__ __forceinline__ u32 converted(int r) const { return landed(r) + 8; }
  __device__ __forceinline__ static u32 raw_parity(int r) { return r / kRawStages % 2; }

  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kAllStages + kItems + kRawStages; ++i) {
      const bool is_raw = i >= kAllStages + kItems;
      const bool is_converted = i < kAllStages && (i < kStages[kKeys] ? kByteKeys : kByteValues);
      barrier_init(base + kBarrierOffset + i * 16, is_converted ? kConvertingWarps : is_raw ? kWarpReleases : 1);
      barrier_init(base + kBarrierOffset + i * 16 + 8, is_raw ? kWarpReleases * kConvertingWarps : kConsumers * 4);
    }
    barrier_init_fence();
  }
};

// A work item: kTokens tokens of a sequence and one section.
struct Item {
  Rows<kTokens> rows;
  Section section;
  int first_key = 0, tiles = 0;  // tiles of kStep keys; 0: no item
  int wide_place = kNotWide;     // see SeenBlocks; only the producer knows it

  // Writes the item to shared memory; called by one thread.
  __device__ __forceinline__ void put(u32 at) const {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(rows.first), "r"(rows.count),
                 "r"(rows.position), "r"(section.number)
                 : "memory");
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at + 16), "r"(first_key), "r"(tiles) : "memory");
  }
  __device__ __forceinline__ static Item get(u32 at) {
    Item item;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(item.rows.first), "=r"(item.rows.count), "=r"(item.rows.position), "=r"(item.section.number)
                 : "r"(at)
                 : "memory");
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(item.first_key), "=r"(item.tiles) : "r"(at + 16) : "memory");
    item.tiles = uniform(item.tiles);
    return item;
  }
};

// The producer warp. Tiles and items are numbered consecutively through the launch.
struct Producer {
  const WgmmaArguments& all;
  const PrefillArguments& a;
  Shared shared;
  int lane;
  SequenceSearch search;       // for blocks of rows
  u32 asked_for = blockIdx.x;  // in lane 0: the number of the next item, possibly still in flight
  int uses = 0;                // uses of the raw stages

  // Requests the next item that no block has taken. take() is called later, when the answer has had time to arrive.
  __device__ __forceinline__ void ask() {
    if (lane == 0) asked_for = gridDim.x + atomicAdd(all.taken, 1);
  }
  // Takes the requested item; a block's first item needs no request. Each block that has an item goes on requesting
  // until it gets none, so that the number of requests equals the number of items; the last request resets the counter
  // to zero.
  __device__ __forceinline__ Item take() {
    const u32 index = __shfl_sync(0xffffffffu, asked_for, 0);
    const int row_block = index / kAllSections, section = index % kAllSections;
    if constexpr (TL_NEW_TOKENS == 1) {
      if (row_block < a.num_seqs) return make(row_block, 0, section);
      search.blocks = a.num_seqs;
    } else {
      const auto found = search.find(row_block, a.num_seqs, lane,
                                     [&](int s) { return ceil_div(a.cu_seqlens[s + 1] - a.cu_seqlens[s], kTokens); });
      if (found.seq >= 0) return make(found.seq, found.block, section);
    }
    if (lane == 0 && index == search.blocks * kAllSections + gridDim.x - 1) {
      wait_for_previous_kernel();  // which may count as well
      *all.taken = 0;
    }
    return Item{};
  }
  __device__ __forceinline__ Item make(int seq, int block, int section) const {
    Item item{Rows<kTokens>(a, seq, block), {section}};
    item.first_key = item.rows.template first_key<kStep>(a.window);
    item.tiles = ceil_div(item.rows.keys() - item.first_key, kStep);
    if constexpr (kByteValues && !kFewTokens) {
      item.wide_place = SeenBlocks{a.cu_seqlens, a.past_lens, a.window}.wide_place(seq, all.wide.blocks, lane);
    }
    return item;
  }
  __device__ __forceinline__ void announce(const Item& item, int n) const {
    barrier_wait(shared.done(n), Shared::item_parity(n) ^ 1);
    if (lane == 0) {
      item.put(shared.item(n));
      barrier_arrive(shared.announced(n));
    }
    __syncwarp();
  }

  // Lane i returns the cache block of the i-th page from key `key` on.
  __device__ __forceinline__ int page_ids(const Item& item, int key) const {
    const int token = key + lane % KeyCopy::kPages * TL_PAGE;
    if (kByteKeys && !kFewTokens && item.wide_place != kNotWide) return item.wide_place + token / TL_PAGE;
    return token < item.rows.keys() ? a.block_tables[static_cast<u64>(item.rows.seq) * a.max_blocks + token / TL_PAGE]
                                    : 0;
  }
  // Copies keys or values from `token` on into tile t.
  template <int kKind>
  __device__ __forceinline__ void copy(int t, const Item& item, int token, int ids) {
    constexpr bool kConverted = kKind == kKeys ? kByteKeys : kByteValues;
    using Copied = TokenCopy<kDim, TL_PAGE, kStep, kConverted ? 1 : 2>;
    int blocks[KeyCopy::kPages];
#pragma unroll
    for (int page = 0; page < KeyCopy::kPages; ++page) blocks[page] = __shfl_sync(0xffffffffu, ids, page);
    const int present = min_of(item.rows.keys() - token, kStep), head = item.section.kv_head();
    if (kConverted && !kFewTokens && item.wide_place != kNotWide) {
      if constexpr (!kByteKeys) {  // `ids` are those of keys, which have no copy
#pragma unroll
        for (int page = 0; page < KeyCopy::kPages; ++page) blocks[page] = item.wide_place + token / TL_PAGE + page;
      }
      // The barrier waits for as many arrivals as if the tile were converted.
      wait_empty<kKind>(t);
      if (lane > 0 && lane < kConvertingWarps) barrier_arrive(shared.full<kKind>(t));
      copy_tokens<kKind>(WideCopy{head, token, present, blocks, lane}, shared.tile<kKind>(t), shared.full<kKind>(t),
                         kKind == kKeys ? all.wide.keys : all.wide.values);
      return;
    }
    const Copied copy{head, token, present, blocks, lane};
    const void* cache = kKind == kKeys ? a.key_cache : a.value_cache;
    if constexpr (kConverted) {
      barrier_wait(shared.converted(uses), Shared::raw_parity(uses) ^ 1);
      if (lane == 0) put_order(kKind, t);
      __syncwarp();
      copy_tokens<kKind>(copy, shared.raw(uses), shared.landed(uses), cache);
      if (TL_RACECHECK && !copying_lane()) barrier_arrive(shared.landed(uses));  // after its share of clear_behind()
      ++uses;
    } else {
      wait_empty<kKind>(t);
      copy_tokens<kKind>(copy, shared.tile<kKind>(t), shared.full<kKind>(t), cache);
    }
  }
  template <int kKind>
  __device__ __forceinline__ void wait_empty(int t) const {
    barrier_wait(shared.empty<kKind>(t), Shared::parity<kKind>(t) ^ 1);
  }
  template <int kKind, class Tokens>
  __device__ __forceinline__ static void copy_tokens(const Tokens& copy, u32 target, u32 full, const void* cache) {
    if constexpr (kKind == kKeys) {
      if (copying_lane()) {
        expect_bytes(full, copy.key_bytes());
        copy.keys(target, cache, full);
      }
    } else {
      copy.clear_behind(target);
      if (copying_lane()) {
        expect_bytes(full, copy.value_bytes());
        copy.values(target, cache, full);
      }
    }
    __syncwarp();
  }
  // Writes what the next use of a raw stage becomes: tile t of a kind.
  __device__ __forceinline__ void put_order(int kind, int t) const {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(shared.order(uses)), "r"(kind), "r"(t) : "memory");
  }
  // Writes an order which says that no more tiles follow.
  __device__ __forceinline__ void end_orders() const {
    barrier_wait(shared.converted(uses), Shared::raw_parity(uses) ^ 1);
    if (lane == 0) put_order(kNoKind, 0);
    if (releasing_lane(lane)) barrier_arrive(shared.landed(uses));
  }
  // The producer loop. Consumers learn of the next item when they begin one, and fetch its queries. Lengths and block
  // tables, of the first item here, are read before the previous kernel has finished (see allow_next_kernel).
  __device__ __forceinline__ void run() {
    Item item = take();
    int ids = page_ids(item, item.first_key), last_ids = 0;
    announce(item, 0);
    wait_for_previous_kernel();
    if (item.tiles > 0) ask();
    for (int n = 1, tile = 0; item.tiles > 0; ++n) {
      Item next;
      for (int t = 0; t <= item.tiles; ++t) {
        const int key = item.first_key + t * kStep;
        int next_ids = ids;
        if (t < item.tiles) copy<kKeys>(tile + t, item, key, ids);
        if (t == 0) {
          next = take();
          announce(next, n);
        }
        if (t + 1 < item.tiles) next_ids = page_ids(item, key + kStep);
        if (t + 1 == item.tiles) {
          if (next.tiles > 0) ask();
          next_ids = page_ids(next, next.first_key);
        }
        if (t > 0) copy<kValues>(tile + t - 1, item, key - kStep, last_ids);
        last_ids = ids;
        ids = next_ids;
      }
      tile += item.tiles;
      item = next;
    }
    if constexpr (kByteValues) end_orders();
  }
};

}  // namespace tl
