// Paged grouped-query attention of one new token per sequence, whose key and value are in the cache already.
//
// Bytes: the keys and values, once: sum of lengths * 2 * kv_heads * head_dim * 2. FLOPs: 4 * heads * head_dim per
// cached token, a few per byte. Floor: bytes / bandwidth (Llama-3.1-8B, 64 sequences of 2048: 537 MB, 120 us at 4.47
// TB/s).
//
// One wave of blocks takes equal shares of all units (split.cuh). Each warp streams its own 16 of a unit's tokens
// through a private ring of cp.async stages, which runs on across units, heads and sequences: no barrier of the block
// but at the end of a (sequence, head) pair, where the warps' results meet in shared memory. A pair shared by several
// blocks goes through `partials`; the last block to arrive combines them in block order, so that results do not depend
// on timing.
//
// Lengths, block tables and the cache but for the new token are read before the previous kernel has finished, so they
// must have been written before it began (see allow_next_kernel).
//
// Launch: 32 * TL_WARPS threads, TL_SHARED_BYTES of dynamic shared memory, any grid of at most one
// wave and of 2 * TL_HEAD_DIM blocks. `partials`
// holds 2 * grid * group * (head_dim + 2) floats, `arrivals` num_seqs * kv_heads zeros, which the kernel leaves zero.
// Macros: TL_HEADS, TL_KV_HEADS, TL_HEAD_DIM, TL_PAGE (a multiple of 16), TL_WARPS, TL_MAX_SEQS, TL_SHARED_BYTES.
#include "paged_attention/split.cuh"
#include "paged_attention/tile.cuh"

namespace tl {

constexpr int kDim = TL_HEAD_DIM, kGroup = TL_HEADS / TL_KV_HEADS, kChunk = 16 * TL_WARPS;
constexpr int kThreads = 32 * TL_WARPS, kPartialFloats = kGroup * (kDim + 2);
static_assert(kDim % 16 == 0 && kGroup <= 16 && TL_PAGE % 16 == 0);

using Table = SplitTable<TL_KV_HEADS, kChunk, TL_MAX_SEQS>;
using Cursor = UnitCursor<Table>;
using State = TileState<kDim, (kGroup > 8 ? 2 : 1)>;

// Shared memory: split table | each warp's result: group rows of dim sums, then maxima, then sums | flag | stages
constexpr u32 kResultOffset = (sizeof(Table) + 15) / 16 * 16;
constexpr u32 kFlagOffset = kResultOffset + TL_WARPS * kPartialFloats * 4;
constexpr u32 kStageOffset = kFlagOffset + 16;
constexpr u32 kStageBytes = 2 * TileShape<kDim>::kRowsBytes;
constexpr int kStages =
    min_of(8, (TL_SHARED_BYTES - static_cast<int>(kStageOffset)) / static_cast<int>(TL_WARPS * kStageBytes));
static_assert(kStages >= 2, "TL_SHARED_BYTES is too small for two stages");

struct DecodeArguments {
  u16* output;  // [seqs, heads, dim]
  const u16* query;
  const u16* key_cache;  // [blocks, kv_heads, page, dim]
  const u16* value_cache;
  const int* past_lens;
  const int* block_tables;  // [seqs, max_blocks]
  float* partials;
  u32* arrivals;
  int num_seqs, max_blocks, window;
  float scale;
};

// Copies this warp's 16 tokens of a unit, one unit ahead of which the number of the cache block is already on its way.
struct Loader {
  const DecodeArguments& a;
  Cursor cursor;
  int left, warp, lane;
  u32 stages;
  int stage = 0, block = 0;

  __device__ __forceinline__ int token() const { return cursor.chunk * kChunk + warp * 16; }
  __device__ __forceinline__ void fetch_block() {
    if (left > 0 && token() < cursor.table.lengths[cursor.seq]) {
      block = a.block_tables[static_cast<u64>(cursor.seq) * a.max_blocks + token() / TL_PAGE];
    }
  }
  // The new token's key and value come from the previous kernel; everything else was there before it.
  __device__ __forceinline__ bool holds_new_token() const { return cursor.chunk + 1 == cursor.end_chunk; }
  __device__ __forceinline__ void issue() {
    if (left > 0) {
      const int present = cursor.table.lengths[cursor.seq] - token();
      const u64 row = (static_cast<u64>(block) * TL_KV_HEADS + cursor.head) * TL_PAGE + token() % TL_PAGE;
      const u32 target = stages + stage * kStageBytes;
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) {
        const int piece = i * 32 + lane, r = piece / (kDim / 8), column = piece % (kDim / 8);
        const u64 from = present > 0 ? row * kDim + piece * 8 : 0;
        const u32 to = target + r * TileShape<kDim>::kPitch + column * 16;
        copy16(to, a.key_cache + from, r < present);
        copy16(to + TileShape<kDim>::kRowsBytes, a.value_cache + from, r < present);
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
      if (--left > 0) cursor.next<TL_KV_HEADS>();
      fetch_block();
    }
    copy_commit();  // also when empty: groups are counted
  }
};

// A warp's rows into shared memory: unnormalised output, maximum, sum.
__device__ __forceinline__ void put_result(const State& state, float* result, int lane) {
#pragma unroll
  for (int half = 0; half < (kGroup > 8 ? 2 : 1); ++half) {
    const int row = lane / 4 + half * 8;
    const float sum = quad_sum(state.rows.sum[half]);
    if (row >= kGroup) continue;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      result[row * kDim + i * 8 + lane % 4 * 2] = state.output[i][half * 2];
      result[row * kDim + i * 8 + lane % 4 * 2 + 1] = state.output[i][half * 2 + 1];
    }
    if (lane % 4 == 0) {
      result[kGroup * kDim + row] = state.rows.maximum[half];
      result[kGroup * (kDim + 1) + row] = sum;
    }
  }
}

// Sums `count` results of kPartialFloats floats; from(n) is the n-th. All threads take part; `factors` is shared memory
// of count * kGroup floats, and `put(i, value)` gets output element i = row * kDim + column.
template <class From, class Put>
__device__ __forceinline__ void combine(int count, float* factors, const From& from, const Put& put) {
  for (int i = threadIdx.x; i < count * kGroup; i += kThreads) {
    factors[i] = __ldcg(from(i / kGroup) + kGroup * kDim + i % kGroup);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kGroup * kDim; i += kThreads) {
    const int row = i / kDim;
    float maximum = kNoMaximum, value = 0.0f, sum = 0.0f;
    for (int n = 0; n < count; ++n) maximum = fmaxf(maximum, factors[n * kGroup + row]);
#pragma unroll 8
    for (int n = 0; n < count; ++n) {
      const float factor = exp2_fast(factors[n * kGroup + row] - maximum);
      value += factor * __ldcg(from(n) + i);
      sum += factor * __ldcg(from(n) + kGroup * (kDim + 1) + row);
    }
    put(i, value / sum);
  }
}

// Ends a (sequence, head) pair that began at unit `begin` and has `count` units; results of the warps are in `results`.
__device__ __forceinline__ void finish(const DecodeArguments& a, int seq, int head, int begin, int count,
                                       const Shares& shares, float* results, u32* flag) {
  u16* output = a.output + (static_cast<u64>(seq) * TL_HEADS + head * kGroup) * kDim;
  const int first = shares.block_of(begin), last = shares.block_of(begin + count - 1);
  // The block in which a pair begins uses its second slot, blocks that continue one their first.
  const auto slot = [&](int block) { return a.partials + (2 * block + (block == first)) * kPartialFloats; };
  const int me = blockIdx.x;
  for (int i = threadIdx.x; i < kGroup * kDim; i += kThreads) {
    float maximum = kNoMaximum, sum = 0.0f, value = 0.0f;
    const int row = i / kDim;
    for (int w = 0; w < TL_WARPS; ++w) maximum = fmaxf(maximum, results[w * kPartialFloats + kGroup * kDim + row]);
    for (int w = 0; w < TL_WARPS; ++w) {
      const float* from = results + w * kPartialFloats;
      const float factor = exp2_fast(from[kGroup * kDim + row] - maximum);
      value += factor * from[i];
      sum += factor * from[kGroup * (kDim + 1) + row];
    }
    if (first == last) {
      output[i] = pack1(value / sum);
    } else {
      slot(me)[i] = value;
      if (i % kDim == 0) {
        slot(me)[kGroup * kDim + row] = maximum;
        slot(me)[kGroup * (kDim + 1) + row] = sum;
      }
    }
  }
  if (first == last) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) *flag = atomicAdd(a.arrivals + seq * TL_KV_HEADS + head, 1) == last - first;
  __syncthreads();
  if (*flag == 0) return;
  __threadfence();
  combine(
      last - first + 1, results, [&](int n) { return slot(first + n); },
      [&](int i, float value) { output[i] = pack1(value); });
  if (threadIdx.x == 0) a.arrivals[seq * TL_KV_HEADS + head] = 0;
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kThreads)
    paged_attention_decode(const __grid_constant__ tl::DecodeArguments a) {
  using namespace tl;
  extern __shared__ __align__(128) char memory[];
  Table& table = *reinterpret_cast<Table*>(memory);
  float* results = reinterpret_cast<float*>(memory + kResultOffset);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) table.build(a.past_lens, a.num_seqs, a.window);
  __syncthreads();
  const Shares shares(table.first_unit[a.num_seqs]);
  if (static_cast<int>(blockIdx.x) >= shares.blocks) {
    wait_for_previous_kernel();
    return;
  }
  const int begin = shares.first_unit(blockIdx.x), end = shares.first_unit(blockIdx.x + 1);
  const u32 stages = shared_address(memory) + kStageOffset + warp * kStages * kStageBytes;
  Cursor cursor(table, begin, a.num_seqs, a.window);
  Loader loader{a, cursor, end - begin, warp, lane, stages};
  loader.fetch_block();
  int ahead = 0;
  for (; ahead < kStages - 1 && loader.left > 0 && !loader.holds_new_token(); ++ahead) loader.issue();
  wait_for_previous_kernel();
  allow_next_kernel();
  for (; ahead < kStages - 1; ++ahead) loader.issue();
  State state;
  int stage = 0;
  bool fresh = true;
  for (int unit = begin; unit < end; ++unit) {
    if (fresh) {
      state.reset();
      state.load_query(a.query + (static_cast<u64>(cursor.seq) * TL_HEADS + cursor.head * kGroup) * kDim, kGroup, lane);
      fresh = false;
    }
    copy_wait<kStages - 2>();
    __syncwarp();
    loader.issue();
    const int length = table.lengths[cursor.seq], token = cursor.chunk * kChunk + warp * 16;
    const u32 keys = stages + stage * kStageBytes;
    if (token < length) {
      state.add(keys, keys + TileShape<kDim>::kRowsBytes, Table::first_token(length, a.window) - token - 1,
                length - token - 1, a.scale, lane);
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (cursor.chunk + 1 == cursor.end_chunk || unit + 1 == end) {
      put_result(state, results + warp * kPartialFloats, lane);
      __syncthreads();
      const int chunks = Table::num_chunks(length, a.window);
      const int pair_begin = table.first_unit[cursor.seq] + cursor.head * chunks;
      finish(a, cursor.seq, cursor.head, pair_begin, chunks, shares, results,
             reinterpret_cast<u32*>(memory + kFlagOffset));
      __syncthreads();
      fresh = true;
    }
    if (unit + 1 < end) cursor.next<TL_KV_HEADS>();
  }
}
