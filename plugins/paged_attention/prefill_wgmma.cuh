// Paged causal grouped-query attention of packed sequences of any number of new tokens, for sm_90a: prefill.cuh with
// wgmma, which that target's tensor cores need for more than half of their rate.
//
// An item is 128 rows of one KV head (see Rows). One warpgroup produces: it copies keys and values, which the cache
// scatters, into a ring of two stages each. Two warpgroups of 64 rows consume. Each issues the scores of the next keys
// and the product of the last weights with their values, and computes the next weights while the latter runs; they take
// turns in issuing, so that one computes weights while the tensor cores work for the other. (FlashAttention-3,
// arXiv 2407.08608, sections 3.1 and 3.2.) Blocks stay for several items, so that the next one's queries, keys and
// values arrive while the last one ends.
//
// Launch: 384 threads, TL_SHARED_BYTES of dynamic shared memory (all that the kernel needs: see kSharedBytes), any
// grid; one block an SM is best. Macros: TL_HEADS, TL_KV_HEADS, TL_HEAD_DIM (64, 80, 96, 128, 256), TL_PAGE (a multiple
// of 16 that divides kStep or is a multiple of it), TL_SHARED_BYTES.
#include "cuda/wgmma.cuh"
#include "paged_attention/prefill_rows.cuh"
#include "paged_attention/softmax.cuh"

namespace tl {

constexpr int kDim = TL_HEAD_DIM, kGroup = TL_HEADS / TL_KV_HEADS;
constexpr int kConsumers = 2, kGroupThreads = 128, kThreads = (1 + kConsumers) * kGroupThreads;
constexpr int kRows = kConsumers * 64, kTokens = kRows / kGroup;
constexpr int kStep = kDim <= 128 ? 128 : 64;  // keys at a time; registers bound it
constexpr int kStages = 2;
constexpr int kColumns = kDim / 8, kColumnBlocks = ceil_div(kDim, 64);
constexpr u32 kQueryBytes = kColumnBlocks * 64 * kBlockRowBytes, kTileBytes = kColumnBlocks * kStep * kBlockRowBytes;
constexpr u32 kBarrierOffset = kConsumers * kQueryBytes + 2 * kStages * kTileBytes;
constexpr int kSharedBytes = kBarrierOffset + 4 * kStages * 8;
constexpr int kPagesPerStep = TL_PAGE >= kStep ? 1 : kStep / TL_PAGE;
// Registers of the producer and the consumers; 40 * 128 + 232 * 256 <= 65536.
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
static_assert(kDim == 64 || kDim == 80 || kDim == 96 || kDim == 128 || kDim == 256);
static_assert(kGroup <= kRows && TL_PAGE % 16 == 0 && kStep % TL_PAGE * (TL_PAGE % kStep) == 0);
static_assert(TL_SHARED_BYTES >= kSharedBytes, "TL_SHARED_BYTES is too small");

// The shared memory: each consumer's queries | stages of keys | stages of values | barriers.
struct Shared {
  u32 base;

  __device__ __forceinline__ u32 query(int consumer) const { return base + consumer * kQueryBytes; }
  __device__ __forceinline__ u32 keys(int stage) const { return base + kConsumers * kQueryBytes + stage * kTileBytes; }
  __device__ __forceinline__ u32 values(int stage) const { return keys(kStages + stage); }
  // Of tile t, keys (kind 0) or values (kind 1): landed, and used by all consuming warps.
  __device__ __forceinline__ u32 full(int kind, int t) const {
    return base + kBarrierOffset + (kind * kStages + t % kStages) * 16;
  }
  __device__ __forceinline__ u32 empty(int kind, int t) const { return full(kind, t) + 8; }
  __device__ __forceinline__ static u32 parity(int t) { return t / kStages % 2; }

  __device__ __forceinline__ void init() const {
    for (int i = 0; i < 2 * kStages; ++i) {
      barrier_init(full(0, 0) + i * 16, kGroupThreads);
      barrier_init(empty(0, 0) + i * 16, kConsumers * 4);
    }
    barrier_init_fence();
  }
};

// A warpgroup copies matrices 16 rows at a time, eight threads a row: every thread keeps its column of each block and
// its row's number modulo 8, and with it the same place in every 1024 bytes.
constexpr int kPassRows = kGroupThreads / 8;
__device__ __forceinline__ int copy_row() { return threadIdx.x % kGroupThreads / 8; }
__device__ __forceinline__ int copy_column() { return threadIdx.x % 8; }

// This thread's share of 16 rows: those at `from` (its own row and column), to `target` (likewise) in column blocks of
// kMatrixRows rows; zeros unless `present`.
template <int kMatrixRows>
__device__ __forceinline__ void copy_pass(u32 target, const u16* from, bool present) {
#pragma unroll
  for (int block = 0; block < kColumnBlocks; ++block) {
    if (kColumns % 8 > 0 && block * 8 + copy_column() >= kColumns) break;
    copy16(target + block * kMatrixRows * kBlockRowBytes, from + block * 64, present);
  }
}

// What a block does in a round: kTokens tokens of a sequence and a KV head. Items with most keys come first, and every
// other round goes round the blocks backwards, so that all blocks get about as many keys.
struct Item {
  Rows<kTokens> rows;
  int head, first_key = 0, tiles = 0;  // tiles of kStep keys; 0: there is no such item

  __device__ __forceinline__ static int index(int round) {
    const int blocks = gridDim.x * gridDim.y, block = blockIdx.y * gridDim.x + blockIdx.x;
    return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
  }
  __device__ __forceinline__ Item(const PrefillArguments& a, int round)
      : rows(a, index(round) / TL_KV_HEADS), head(index(round) % TL_KV_HEADS) {
    if (rows.seq < 0) return;
    first_key = rows.first_key<kStep>(a.window);
    tiles = uniform(ceil_div(rows.keys() - first_key, kStep));
  }
};

// The producing warpgroup. A copy's completion is announced behind the next copy, so that two are under way. Tiles are
// numbered on through all items.
struct Producer {
  const PrefillArguments& a;
  Shared shared;
  u32 announced = 0;  // the full barrier of the copy under way

  __device__ __forceinline__ void announce(u32 next) {
    if (announced != 0) {
      fence_shared_for_wgmma();
      barrier_arrive(announced);
    }
    announced = next;
  }
  // The cache block of the i-th page from key `key` on in lane i.
  __device__ __forceinline__ int page_ids(const Item& item, int key) const {
    const int token = key + threadIdx.x % kPagesPerStep * TL_PAGE;
    return token < item.rows.keys() ? a.block_tables[static_cast<u64>(item.rows.seq) * a.max_blocks + token / TL_PAGE]
                                    : 0;
  }
  // Keys or values from `token` on into tile t; those past the last key become zeros.
  __device__ __forceinline__ void copy(int kind, int t, const Item& item, int token, int ids, u32 stage,
                                       const u16* cache) {
    constexpr int kPageRows = kStep / kPagesPerStep;
    const int row = copy_row(), keys = item.rows.keys();
    const u32 target = stage + swizzled(row, copy_column(), kStep);
    barrier_wait(shared.empty(kind, t), Shared::parity(t) ^ 1);
#pragma unroll
    for (int page = 0; page < kPagesPerStep; ++page) {
      const u64 id = __shfl_sync(0xffffffffu, ids, page);
      const u64 slot = (id * TL_KV_HEADS + item.head) * TL_PAGE + (kPagesPerStep == 1 ? token % TL_PAGE : 0) + row;
      const u16* from = cache + slot * kDim + copy_column() * 8;
#pragma unroll
      for (int r = 0; r < kPageRows; r += kPassRows) {
        const int tile_row = page * kPageRows + r;
        copy_pass<kStep>(target + tile_row * kBlockRowBytes, from + r * kDim, token + tile_row + row < keys);
      }
    }
    copy_commit();
    copy_wait<1>();
    announce(shared.full(kind, t));
  }
  __device__ __forceinline__ void run() {
    int tile = 0;
    for (int round = 0;; ++round) {
      const Item item(a, round);
      if (item.tiles == 0) return;
      int ids = page_ids(item, item.first_key), last_ids = 0;
      for (int t = 0; t <= item.tiles; ++t) {
        const int key = item.first_key + t * kStep, next_ids = page_ids(item, key + kStep), k = tile + t, v = k - 1;
        if (t < item.tiles) copy(0, k, item, key, ids, shared.keys(k % kStages), a.key_cache);
        if (t > 0) copy(1, v, item, key - kStep, last_ids, shared.values(v % kStages), a.value_cache);
        last_ids = ids;
        ids = next_ids;
      }
      copy_wait<0>();
      announce(0);
      tile += item.tiles;
    }
  }
};

// A consuming warpgroup: 64 rows.
struct Consumer {
  const PrefillArguments& a;
  Shared shared;
  int consumer, lane;
  float scores[kStep / 8][4];
  float output[kDim / 8][4];
  u32 weights[kStep / 16][4];
  float correction[2];
  RowState rows;

  // The warpgroups' turns in issuing products: named barriers 2 and 3, of both.
  __device__ __forceinline__ void wait_turn() const {
    asm volatile("bar.sync %0, %1;" ::"r"(2 + consumer), "n"(kConsumers * kGroupThreads) : "memory");
  }
  __device__ __forceinline__ void pass_turn() const {
    asm volatile("bar.arrive %0, %1;" ::"r"(3 - consumer), "n"(kConsumers * kGroupThreads) : "memory");
  }
  __device__ __forceinline__ void release(int kind, int t) const {
    if (lane == 0) barrier_arrive(shared.empty(kind, t));
  }

  __device__ __forceinline__ void sync() const {
    asm volatile("bar.sync %0, %1;" ::"r"(4 + consumer), "n"(kGroupThreads) : "memory");
  }
  __device__ __forceinline__ void begin_query(const Item& item) const {
    const u32 target = shared.query(consumer) + swizzled(copy_row(), copy_column(), 64);
#pragma unroll
    for (int row = 0; row < 64; row += kPassRows) {
      const int r = consumer * 64 + row + copy_row(), token = r / kGroup;
      const bool present = token < item.rows.count;
      const u64 at =
          static_cast<u64>(item.rows.first + (present ? token : 0)) * TL_HEADS + item.head * kGroup + r % kGroup;
      copy_pass<64>(target + row * kBlockRowBytes, a.query + at * kDim + copy_column() * 8, present);
    }
    copy_commit();
  }
  __device__ __forceinline__ void end_query() const {
    copy_wait<0>();
    fence_shared_for_wgmma();
    sync();
  }

  // Issues scores = queries * keys of tile t.
  __device__ __forceinline__ void issue_scores(int t) {
    barrier_wait(shared.full(0, t), Shared::parity(t));
    pin(scores);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const u64 query = matrix_descriptor(shared.query(consumer) + k / 4 * 64 * kBlockRowBytes + k % 4 * 32, 0);
      const u64 keys = matrix_descriptor(shared.keys(t % kStages) + k / 4 * kStep * kBlockRowBytes + k % 4 * 32, 0);
      wgmma_shared(scores, query, keys, k > 0);
    }
    wgmma_commit();
  }
  // Issues output += weights * values of tile t.
  __device__ __forceinline__ void issue_output(int t) {
    barrier_wait(shared.full(1, t), Shared::parity(t));
    pin(output);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k) {
      constexpr int kPart = min_of(kDim, 128) / 8;
#pragma unroll
      for (int part = 0; part < kDim / 8 / kPart; ++part) {
        const u32 at = shared.values(t % kStages) + part * 2 * kStep * kBlockRowBytes + k * 16 * kBlockRowBytes;
        auto& columns = reinterpret_cast<float (&)[kPart][4]>(output[part * kPart]);
        wgmma_registers(columns, weights[k], matrix_descriptor(at, kStep * kBlockRowBytes));
      }
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void mask(const Rows<kTokens>& mine, int key) {
    int low[2], high[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = consumer * 64 + threadIdx.x / 32 % 4 * 16 + half * 8 + lane / 4;
      high[half] = mine.position + min_of(r / kGroup, mine.count - 1) - key;
      low[half] = a.window > 0 ? high[half] - a.window : -1 - key;
    }
    mask_scores(scores, low, high, lane);
  }
  // Waits for the scores of tile t, whose keys begin at `key`, with the products issued after them under way, and turns
  // them into weights.
  template <int kPending>
  __device__ __forceinline__ void weigh(const Item& item, int t, int key) {
    wgmma_wait<kPending>();
    pin(scores);
    release(0, t);
    if (item.rows.hides<kStep>(key, a.window)) mask(item.rows, key);
    rows.weigh(scores, correction, a.scale);
  }
  __device__ __forceinline__ void finish_output(int t) {
    wgmma_wait<0>();
    pin(output);
    release(1, t);
  }

  // An item whose tiles are `first` and on.
  __device__ __forceinline__ void attend(const Item& item, const Item& next, int first) {
    rows = RowState{};
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) output[i / 4][i % 4] = 0.0f;
    wait_turn();
    issue_scores(first);
    pass_turn();
    weigh<0>(item, first, item.first_key);
    pack_weights<2>(scores, weights);
#pragma unroll 1
    for (int t = 1; t < item.tiles; ++t) {
      wait_turn();
      issue_scores(first + t);
      issue_output(first + t - 1);
      pass_turn();
      weigh<1>(item, first + t, item.first_key + t * kStep);
      finish_output(first + t - 1);
      RowState::rescale(output, correction);
      pack_weights<2>(scores, weights);
    }
    issue_output(first + item.tiles - 1);
    sync();  // nobody reads the queries any more
    if (next.tiles > 0) begin_query(next);
    finish_output(first + item.tiles - 1);
  }
  __device__ __forceinline__ void run() {
    Item item(a, 0);
    if (item.tiles == 0) return;
    begin_query(item);
    if (consumer == 1) pass_turn();
    int tile = 0;
    for (int round = 1; item.tiles > 0; ++round) {
      const Item next(a, round);
      end_query();
      attend(item, next, tile);
      store(item.rows, item.head);
      tile = uniform(tile + item.tiles);
      item = next;
    }
    if (consumer == 0) wait_turn();  // every turn passed is waited for
  }

  __device__ __forceinline__ void store(const Rows<kTokens>& mine, int head) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = consumer * 64 + threadIdx.x / 32 % 4 * 16 + half * 8 + lane / 4, token = r / kGroup;
      const float inverse = 1.0f / quad_sum(rows.sum[half]);
      if (token >= mine.count) continue;
      const u64 row = static_cast<u64>(mine.first + token) * TL_HEADS + head * kGroup + r % kGroup;
      u32* to = reinterpret_cast<u32*>(a.output + row * kDim) + lane % 4;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        to[d * 4] = pack2(output[d][half * 2] * inverse, output[d][half * 2 + 1] * inverse);
      }
    }
  }
};

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kThreads, 1)
    paged_attention_prefill(const __grid_constant__ tl::PrefillArguments a) {
  using namespace tl;
  extern __shared__ __align__(1024) char memory[];
  const Shared shared{shared_address(memory)};
  const int warpgroup = uniform(threadIdx.x / kGroupThreads);
  if (threadIdx.x == 0) shared.init();
  wait_for_previous_kernel();
  allow_next_kernel();
  __syncthreads();
  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    Producer{a, shared}.run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    Consumer{a, shared, warpgroup - 1, static_cast<int>(threadIdx.x % 32)}.run();
  }
}
