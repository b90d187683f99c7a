// Paged causal grouped-query attention of packed sequences of any number of new tokens, for sm_90a: prefill.cuh with
// wgmma, without which that target's tensor cores reach only half of their rate.
//
// An item is 128 rows of one KV head (see Rows). A producer warp takes items, those of a sequence with the most keys
// first, from a counter that all blocks share, and loads keys and values into rings by bulk copies. Two consumer
// warpgroups of 64 rows work in rounds that continue from item to item: in each, a warpgroup issues the scores of the
// next keys and the product of the last weights with their values, and computes the next weights. They take turns to
// issue, so that one computes weights while the tensor cores work for the other. (FlashAttention-3, arXiv 2407.08608,
// sections 3.1 and 3.2.) So an item's first scores are computed while the previous item ends, and its queries, keys and
// values have been loaded by then.
//
// The compiler puts the wait for a round's output before most of the weights' arithmetic. If that arithmetic is forced
// after the wait (by a branch on their sum), it also overlaps with its own warpgroup's product, but an H200 gains
// nothing: 1 % slower for 8192 tokens, equally fast for 64 times 128.
//
// Launch: kThreads threads, TL_SHARED_BYTES of dynamic shared memory (all that the kernel needs: see kSharedBytes), a
// one-dimensional grid; as many blocks as fit on the card are best. `taken` is a zero, which the kernel leaves zero.
// Macros: TL_HEADS, TL_KV_HEADS, TL_HEAD_DIM (64, 80, 96, 128, 256), TL_PAGE (a multiple of 16 that divides kStep or is
// a multiple of it), TL_SHARED_BYTES, TL_SINKS (0 or 1), TL_NEW_TOKENS (0, or the most new tokens of a sequence, if
// these are few; the results are the same bits), TL_WIDE_TOKENS (see wide_cache.cuh), and those of cache.cuh (for
// bytes, three warps convert what the producer loads), score_scale.cuh, seen_keys.cuh and output.cuh.
#include "cuda/softmax.cuh"
#include "paged_attention/prefill_convert.cuh"
#include "paged_attention/prefill_producer.cuh"

namespace tl {

// A warpgroup copies matrices 16 rows at a time, with eight threads per row. Every thread keeps the same column in each
// block and the same row number modulo 8, and so the same place in every 1024 bytes.
constexpr int kPassRows = kGroupThreads / 8;
__device__ __forceinline__ int copy_row() { return threadIdx.x % kGroupThreads / 8; }
__device__ __forceinline__ int copy_column() { return threadIdx.x % 8; }

// Copies this thread's share of 16 rows from `from` to `target`, both already offset by its row and column; column
// blocks have kMatrixRows rows. Writes zeros unless `present`.
template <int kMatrixRows>
__device__ __forceinline__ void copy_pass(u32 target, const u16* from, bool present) {
#pragma unroll
  for (int block = 0; block < kColumnBlocks; ++block) {
    if (kColumns % 8 > 0 && block * 8 + copy_column() >= kColumns) break;
    copy16(target + block * kMatrixRows * kBlockRowBytes, from + block * 64, present);
  }
}

// A consumer warpgroup: it has 64 rows.
struct Consumer {
  const PrefillArguments& a;
  Shared shared;
  int consumer, lane;
  float scores[kStep / 8][4];
  float output[kDim / 8][4];
  u32 weights[kStep / 16][4];
  float correction[2] = {1.0f, 1.0f};
  float temperatures[2];  // temperatures of this lane's rows of the item being weighed
  RowState rows;

  // Warpgroups take turns to issue products, by named barriers 2 and 3.
  __device__ __forceinline__ void wait_turn() const {
    if constexpr (kConsumers == 1) return;
    asm volatile("bar.sync %0, %1;" ::"r"(2 + consumer), "n"(kConsumers * kGroupThreads) : "memory");
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (kConsumers == 1) return;
    asm volatile("bar.arrive %0, %1;" ::"r"(3 - consumer), "n"(kConsumers * kGroupThreads) : "memory");
  }
  template <int kKind>
  __device__ __forceinline__ void release(int t) const {
    if (lane == 0) barrier_arrive(shared.empty<kKind>(t));
  }

  __device__ __forceinline__ void sync() const {
    asm volatile("bar.sync %0, %1;" ::"r"(4 + consumer), "n"(kGroupThreads) : "memory");
  }
  // Reads item n. The producer has announced it, or will.
  __device__ __forceinline__ Item item(int n) const {
    barrier_wait(shared.announced(n), Shared::item_parity(n));
    return Item::get(shared.item(n));
  }
  __device__ __forceinline__ void begin_query(const Item& item, int n) const {
    if (item.tiles == 0) return;
    const u32 target = shared.query(n, consumer) + swizzled(copy_row(), copy_column(), 64);
#pragma unroll
    for (int row = 0; row < kQueryRows; row += kPassRows) {
      const int r = consumer * 64 + row + copy_row(), token = r / kGroup;
      const bool present = token < item.rows.count;
      const u64 at = static_cast<u64>(item.rows.first + (present ? token : 0)) * TL_HEADS + item.section.head(r);
      copy_pass<64>(target + row * kBlockRowBytes, a.query + at * kDim + copy_column() * 8, present);
    }
    copy_commit();
  }
  // Waits for the queries of item n, and starts to copy those of the next item if they have their own place: the
  // queries of item n - 1 are no longer read.
  __device__ __forceinline__ void end_query(int n) const {
    copy_wait<0>();
    fence_async_copies();
    sync();
    if constexpr (kQueries == 2) begin_query(item(n + 1), n + 1);
  }

  // Issues scores = queries of item n * keys of tile t.
  __device__ __forceinline__ void issue_scores(int n, int t) {
    barrier_wait(shared.full<kKeys>(t), Shared::parity<kKeys>(t));
    pin(scores);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const u64 query = matrix_descriptor(shared.query(n, consumer) + k / 4 * 64 * kBlockRowBytes + k % 4 * 32, 0);
      const u32 at = Layout::pair_address(shared.keys(t), k);
      const u64 keys = Layout::kSwizzled ? matrix_descriptor(at, 0, Layout::kGroupBytes)
                                         : submatrix_descriptor(at, Layout::kMatrixBytes, Layout::kGroupBytes);
      wgmma_shared(scores, query, keys, k > 0);
    }
    wgmma_commit();
  }
  // Issues output += weights * values of tile t.
  __device__ __forceinline__ void issue_output(int t) {
    barrier_wait(shared.full<kValues>(t), Shared::parity<kValues>(t));
    pin(output);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k) {
      constexpr int kPart = min_of(kDim, 128) / 8;
#pragma unroll
      for (int part = 0; part < kDim / 8 / kPart; ++part) {
        const u32 at = Layout::pair_address(shared.values(t), part * kPart / 2) + k * 2 * Layout::kGroupBytes;
        const u64 values = Layout::kSwizzled ? matrix_descriptor(at, Layout::kMatrixBytes, Layout::kGroupBytes)
                                             : submatrix_descriptor(at, Layout::kGroupBytes, Layout::kMatrixBytes);
        auto& columns = reinterpret_cast<float (&)[kPart][4]>(output[part * kPart]);
        wgmma_registers<kHalfWeights>(columns, weights[k], values);
      }
    }
    wgmma_commit();
  }

  // The number in the item of this lane's first or second row.
  __device__ __forceinline__ int row_of(int half) const {
    return consumer * 64 + threadIdx.x / 32 % 4 * 16 + half * 8 + lane / 4;
  }
  __device__ __forceinline__ void begin_rows(const Rows<kTokens>& mine) {
#pragma unroll
    for (int half = 0; half < 2; ++half) temperatures[half] = a.scale.temperature(mine.position_of(row_of(half)));
  }
  __device__ __forceinline__ void mask(const Rows<kTokens>& mine, int key) {
    int low[2], high[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = mine.position_of(row_of(half));
      high[half] = position - key;
      low[half] = first_seen(position, a.window) - 1 - key;
    }
    mask_scores_above(scores, high, lane);
    if (low[1] >= 0) mask_scores_up_to(scores, low, lane);
  }
  // Waits for the scores of tile t, whose first key is `key`, and converts them to weights. The products issued after
  // them stay in flight.
  template <int kPending>
  __device__ __forceinline__ void weigh(const Item& item, int t, int key) {
    wgmma_wait<kPending>();
    pin(scores);
    release<kKeys>(t);
    if (!has_rows()) return;
    a.scale.tune(scores, temperatures);
    a.scale.cap(scores);
    if (item.rows.hides<kStep>(key, a.window)) mask(item.rows, key);
    rows.weigh(scores, correction, a.scale.factor());
  }
  // Whether this warp's rows are copied. The results of other rows are arbitrary, and are not stored.
  __device__ __forceinline__ static bool has_rows() { return threadIdx.x % kGroupThreads < kQueryRows / 16 * 32; }
  __device__ __forceinline__ void finish_output(int t) {
    wgmma_wait<0>();
    pin(output);
    release<kValues>(t);
  }

  // Adds the sinks' weights to the rows' sums. Called after the weights of an item's last keys.
  __device__ __forceinline__ void add_sinks(const Item& item) {
    if constexpr (TL_SINKS) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        rows.add_sink(half, a.scale.exponent_of(a.sinks[item.section.head(row_of(half))]), lane);
      }
    }
  }
  __device__ __forceinline__ void clear_output() {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) output[i / 4][i % 4] = 0.0f;
  }
  // Called after the scores of an item's last tile: if there is only one place for queries, those of the next item may
  // now be copied.
  __device__ __forceinline__ void end_scores(int n) const {
    if constexpr (kQueries == 1) {
      sync();
      begin_query(item(n + 1), n + 1);
    }
  }

  // Every round issues the scores of one tile and the output of the tile before it, which may belong to the previous
  // item.
  __device__ __forceinline__ void run() {
    Item now = item(0);
    if (now.tiles == 0) return;
    if (consumer == 1) pass_turn();
    begin_query(now, 0);
    end_query(0);
    wait_turn();
    issue_scores(0, 0);
    pass_turn();
    clear_output();
    begin_rows(now.rows);
    weigh<0>(now, 0, now.first_key);
    if (now.tiles == 1) end_scores(0);
    pack_weights<kHalfWeights>(scores, weights);
    Item ended;
    int n = 0, tile = 0;
#pragma unroll 1
    for (int left = now.tiles - 1;; --left) {  // tiles of the item after this tile
      const bool ends = left == 0;
      float sums[2];
      if (ends) {
        add_sinks(now);
        ended = now;
        now = item(n + 1);
        left = now.tiles;
        if (left == 0) break;
        end_query(++n);
        rows.restart(sums);
        begin_rows(now.rows);
      }
      n = uniform(n);
      tile = uniform(tile + 1);
      wait_turn();
      issue_scores(n, tile);
      issue_output(tile - 1);
      pass_turn();
      weigh<1>(now, tile, now.first_key + (now.tiles - left) * kStep);
      if (left == 1) end_scores(n);
      finish_output(tile - 1);
      if (ends) {
        store(ended, sums);
        if (lane == 0) barrier_arrive(shared.done(n - 1));
        clear_output();
      } else {
        RowState::rescale(output, correction);
      }
      pack_weights<kHalfWeights>(scores, weights);
    }
    issue_output(tile);
    finish_output(tile);
    store(ended, rows.sum);
    if (consumer == 0) wait_turn();  // every signal of the other warpgroup must be waited for
  }

  // Stores the output. Neighbouring lanes exchange columns, so that each stores four columns and two lanes a whole
  // sector.
  __device__ __forceinline__ void store(const Item& ended, const float (&sums)[2]) const {
    const bool odd = lane % 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row_of(half), token = r / kGroup;
      const float inverse = a.value_scale / quad_sum(sums[half]);
      const u64 place = static_cast<u64>(ended.rows.first + token) * TL_HEADS + ended.section.head(r);
      const u64 to = place * kDim + odd * 8 + lane % 4 / 2 * 4;
#pragma unroll
      for (int d = 0; d < kDim / 8; d += 2) {
        const u32 first = pack_y(output[d][half * 2] * inverse, output[d][half * 2 + 1] * inverse);
        const u32 second = pack_y(output[d + 1][half * 2] * inverse, output[d + 1][half * 2 + 1] * inverse);
        const u32 other = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
        const uint2 columns = odd ? make_uint2(other, second) : make_uint2(first, other);
        if (token < ended.rows.count && ended.section.has(r)) Output{a.output, a.y_factor}.put(to + d * 8, columns);
      }
    }
  }
};

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kThreads, tl::kBlocksPerSm)
    paged_attention_prefill(const __grid_constant__ tl::WgmmaArguments a) {
  using namespace tl;
  extern __shared__ __align__(1024) char memory[];
  const Shared shared{shared_address(memory)};
  const int warpgroup = uniform(threadIdx.x / kGroupThreads);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    if (threadIdx.x < 32) {
      Producer{a, a.common, shared, static_cast<int>(threadIdx.x)}.run();
    } else if constexpr (kByteValues) {
      convert_tiles(shared);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    wait_for_previous_kernel();
    allow_next_kernel();
    Consumer{a.common, shared, warpgroup - 1, static_cast<int>(threadIdx.x % 32)}.run();
  }
}
