// Paged grouped-query attention of one new token per sequence, whose key and value are in the cache already.
//
// Bytes: the keys and values, once: sum of lengths * 2 * kv_heads * head_dim * 2. FLOPs: 4 * heads * head_dim per
// cached token, a few per byte. Floor: bytes / bandwidth (Llama-3.1-8B, 64 sequences of 2048: 537 MB, 120 us at 4.47
// TB/s).
//
// One wave of blocks shares all pairs of a sequence and a KV head (split.cuh). A team of warps works through a pair;
// each warp streams its own 16 of a chunk's tokens through a private ring of cp.async stages, which runs on across
// chunks and pairs: no barrier of the team but at the end of a pair, where the warps' results meet in shared memory. A
// pair that several blocks share goes through `partials`; the last block to arrive combines them in block order, so
// that results do not depend on timing.
//
// Lengths, block tables and the cache but for the new token are read before the previous kernel has finished, so they
// must have been written before it began (see allow_next_kernel).
//
// Launch: 32 * TL_WARPS threads, TL_SHARED_BYTES of dynamic shared memory, any grid of at most one wave and of
// 2 * TL_HEAD_DIM blocks. `partials` holds 2 * grid * group * (head_dim + 2) floats, `arrivals` num_seqs * kv_heads
// zeros, which the kernel leaves zero. Macros: TL_HEADS, TL_KV_HEADS, TL_HEAD_DIM, TL_PAGE (a multiple of 16), TL_WARPS
// (a power of 2), TL_MAX_SEQS, TL_SHARED_BYTES.
#include "paged_attention/split.cuh"
#include "paged_attention/tile.cuh"

namespace tl {

constexpr int kDim = TL_HEAD_DIM, kGroup = TL_HEADS / TL_KV_HEADS, kPartialFloats = kGroup * (kDim + 2);
static_assert(kDim % 16 == 0 && kGroup <= 16 && TL_PAGE % 16 == 0);

using Table = SplitTable<TL_KV_HEADS, TL_MAX_SEQS, TL_WARPS>;
using State = TileState<kDim, (kGroup > 8 ? 2 : 1)>;

// Shared memory: split table | each warp's result: group rows of dim sums, then maxima, then sums | a flag a team |
// stages
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

// The calling warp's team in its block. Named barriers 1 and up: one a team.
struct Team {
  int warps, index, warp, thread;  // warp and thread: numbers in the team

  // Of 1 << shift warps.
  __device__ __forceinline__ explicit Team(int shift)
      : warps(1 << shift),
        index(threadIdx.x >> (5 + shift)),
        warp(threadIdx.x / 32 & warps - 1),
        thread(threadIdx.x & 32 * warps - 1) {}
  __device__ __forceinline__ int threads() const { return 32 * warps; }
  __device__ __forceinline__ void sync() const {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + index), "r"(threads()) : "memory");
  }
};

// Copies this warp's 16 tokens of a chunk, one chunk ahead of which the number of the cache block is already on its
// way.
struct Loader {
  const DecodeArguments& a;
  Cursor<Table> cursor;
  int left, warp, lane, chunk_tokens;
  u32 stages;
  int stage = 0, block = 0;

  __device__ __forceinline__ int token() const { return cursor.chunk * chunk_tokens + warp * 16; }
  __device__ __forceinline__ void fetch_block() {
    if (left > 0 && token() < cursor.length()) {
      block = a.block_tables[static_cast<u64>(cursor.seq()) * a.max_blocks + token() / TL_PAGE];
    }
  }
  // The new token's key and value come from the previous kernel; everything else was there before it.
  __device__ __forceinline__ bool holds_new_token() const { return cursor.chunk + 1 == cursor.end_chunk; }
  __device__ __forceinline__ void issue() {
    if (left > 0) {
      const int present = cursor.length() - token();
      const u64 row = (static_cast<u64>(block) * TL_KV_HEADS + cursor.head()) * TL_PAGE + token() % TL_PAGE;
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
      if (--left > 0) cursor.next();
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

// Sums `count` results of kPartialFloats floats; from(n) is the n-th. A team of the whole block takes part; `factors`
// is shared memory of count * kGroup floats, and `put(i, value)` gets output element i = row * kDim + column.
template <class From, class Put>
__device__ __forceinline__ void combine(const Team& team, int count, float* factors, const From& from, const Put& put) {
  for (int i = team.thread; i < count * kGroup; i += team.threads()) {
    factors[i] = __ldcg(from(i / kGroup) + kGroup * kDim + i % kGroup);
  }
  team.sync();
  for (int i = team.thread; i < kGroup * kDim; i += team.threads()) {
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

// Ends a pair whose blocks are workers.x to workers.y; results of the team's warps are in `results`.
__device__ __forceinline__ void finish(const DecodeArguments& a, const Team& team, int pair, int2 workers,
                                       float* results, u32* flag) {
  u16* output = a.output + static_cast<u64>(pair) * kGroup * kDim;
  // The block in which a pair begins uses its second slot, blocks that continue one their first.
  const auto slot = [&](int worker) { return a.partials + (2 * worker + (worker == workers.x)) * kPartialFloats; };
  const bool alone = workers.x == workers.y;
  float* mine = slot(blockIdx.x);
  for (int i = team.thread; i < kGroup * kDim; i += team.threads()) {
    float maximum = kNoMaximum, sum = 0.0f, value = 0.0f;
    const int row = i / kDim;
#pragma unroll
    for (int w = 0; w < TL_WARPS; ++w) {
      if (w < team.warps) maximum = fmaxf(maximum, results[w * kPartialFloats + kGroup * kDim + row]);
    }
#pragma unroll
    for (int w = 0; w < TL_WARPS; ++w) {
      if (w >= team.warps) break;
      const float* from = results + w * kPartialFloats;
      const float factor = exp2_fast(from[kGroup * kDim + row] - maximum);
      value += factor * from[i];
      sum += factor * from[kGroup * (kDim + 1) + row];
    }
    if (alone) {
      output[i] = pack1(value / sum);
    } else {
      mine[i] = value;
      if (i % kDim == 0) {
        mine[kGroup * kDim + row] = maximum;
        mine[kGroup * (kDim + 1) + row] = sum;
      }
    }
  }
  if (alone) return;
  const int others = workers.y - workers.x;
  __threadfence();
  team.sync();
  if (team.thread == 0) *flag = atomicAdd(a.arrivals + pair, 1) == others;
  team.sync();
  if (*flag == 0) return;
  __threadfence();
  combine(
      team, others + 1, results, [&](int n) { return slot(workers.x + n); },
      [&](int i, float value) { output[i] = pack1(value); });
  if (team.thread == 0) a.arrivals[pair] = 0;
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(32 * TL_WARPS)
    paged_attention_decode(const __grid_constant__ tl::DecodeArguments a) {
  using namespace tl;
  extern __shared__ __align__(128) char memory[];
  Table& table = *reinterpret_cast<Table*>(memory);
  table.load(a.past_lens, a.num_seqs, a.window);
  __syncthreads();
  if (threadIdx.x < 32) table.build();
  __syncthreads();
  const Team team(table.chunk_shift - 4);
  const Share<Table> share(table, team.index);
  if (share.units == 0) {
    wait_for_previous_kernel();
    return;
  }
  const int lane = threadIdx.x % 32, chunk_tokens = table.chunk_tokens();
  const u32 stages = shared_address(memory) + kStageOffset + threadIdx.x / 32 * kStages * kStageBytes;
  float* results = reinterpret_cast<float*>(memory + kResultOffset) + team.index * team.warps * kPartialFloats;
  Cursor<Table> cursor = share.cursor;
  Loader loader{a, cursor, share.units, team.warp, lane, chunk_tokens, stages};
  loader.fetch_block();
  int ahead = 0;
  for (; ahead < kStages - 1 && loader.left > 0 && !loader.holds_new_token(); ++ahead) loader.issue();
  wait_for_previous_kernel();
  allow_next_kernel();
  for (; ahead < kStages - 1; ++ahead) loader.issue();
  State state;
  const auto load_query = [&] {
    state.load_query(a.query + static_cast<u64>(cursor.pair) * kGroup * kDim, kGroup, lane);
  };
  load_query();
  int stage = 0;
  for (int left = share.units; left > 0; --left) {
    copy_wait<kStages - 2>();
    __syncwarp();
    loader.issue();
    const int length = cursor.length(), token = cursor.chunk * chunk_tokens + team.warp * 16;
    const u32 keys = stages + stage * kStageBytes;
    if (token < length) {
      state.add(keys, keys + TileShape<kDim>::kRowsBytes, table.first_token(length) - token - 1, length - token - 1,
                a.scale, lane);
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
    const int pair = cursor.pair;
    const bool ends = cursor.chunk + 1 == cursor.end_chunk || left == 1;
    cursor.next();
    if (!ends) continue;
    put_result(state, results + team.warp * kPartialFloats, lane);
    if (left > 1) load_query();  // on its way while this pair ends
    team.sync();
    finish(a, team, pair, share.workers_of(table, pair), results, reinterpret_cast<u32*>(memory + kFlagOffset));
    team.sync();
    state.reset();
  }
}
