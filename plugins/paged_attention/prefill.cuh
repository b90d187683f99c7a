// Paged causal grouped-query attention of packed sequences of any number of new tokens, on tensor cores.
//
// The keys and values of the new tokens are in the cache already. FLOPs: 4 * heads * head_dim for each pair of a query
// and a key it sees (Llama-3.1-8B, one prompt of 8192: 550 GFLOP per layer, 0.7 ms at 789 TFLOPS). Bytes: queries and
// results once; keys and values once per block of queries, mostly from the L2 cache.
//
// A block takes kRows rows of one section (sections.cuh): consecutive tokens times its query heads, so that short
// sequences fill rows too. Four warps hold 16 * kTiles rows each; if heads are wide, kParts warps share rows, and each
// makes a part of the output's columns of the same scores. Keys and values are loaded in steps of 64 tokens, or 32 or
// 16 if shared memory is short, through two cp.async stages. Blocks with the most keys start first.
//
// Launch: kThreads threads, TL_SHARED_BYTES of dynamic shared memory (all that the kernel needs: see kSharedBytes),
// grid (sections, row blocks), where row blocks >= sum over sequences of ceil(new tokens / kTokens); surplus blocks
// exit. Macros: TL_HEADS, TL_KV_HEADS, TL_HEAD_DIM, TL_PAGE (16, 32 or a multiple of 64), TL_SHARED_BYTES (which
// decides the step), TL_SINKS (0 or 1), and those of cache.cuh, score_scale.cuh, seen_keys.cuh and output.cuh.
#include "cuda/attending_warp.cuh"
#include "paged_attention/cache.cuh"
#include "paged_attention/prefill_rows.cuh"

namespace tl {

static_assert(!kByteKeys && !kByteValues, "this kernel reads caches of 16-bit elements only");
constexpr int kDim = TL_HEAD_DIM;
// Bounded by registers: the output alone takes kOutput * kTiles / 2.
constexpr int kTiles = kDim <= 128 ? 2 : 1, kParts = kDim <= 256 ? 1 : 2, kOutput = kDim / kParts;
constexpr int kRows = 4 * 16 * kTiles, kTokens = kRows / kGroup, kThreads = 32 * 4 * kParts;
static_assert(kOutput % 16 == 0);
constexpr u32 kPitch = AttendingWarp<kDim, 1, 16>::kPitch, kQueryBytes = kRows * kPitch;
constexpr int kStep = TL_SHARED_BYTES >= kQueryBytes + 4 * 64 * kPitch   ? 64
                      : TL_SHARED_BYTES >= kQueryBytes + 4 * 32 * kPitch ? 32
                                                                         : 16;
constexpr u32 kStageBytes = 2 * kStep * kPitch;
constexpr int kSharedBytes = kQueryBytes + 2 * kStageBytes;
constexpr int kIdsPerStep = TL_PAGE >= kStep ? 1 : kStep / TL_PAGE;
static_assert(kDim % 16 == 0 && kGroup <= kRows && kStep % TL_PAGE * (TL_PAGE % kStep) == 0);
static_assert(TL_SHARED_BYTES >= kSharedBytes, "TL_SHARED_BYTES is too small");

struct Fetcher {
  const PrefillArguments& a;
  int seq, head, keys;  // keys: the number of keys
  int ids[kIdsPerStep];

  __device__ __forceinline__ void fetch_ids(int token) {
    const int* table = a.block_tables + static_cast<u64>(seq) * a.max_blocks;
#pragma unroll
    for (int i = 0; i < kIdsPerStep; ++i) {
      if (token + i * TL_PAGE < keys) ids[i] = table[(token + i * TL_PAGE) / TL_PAGE];
    }
  }
  // Copies keys and values of tokens token .. token + kStep - 1, whose block numbers are in `ids`. Absent tokens become
  // zeros.
  __device__ __forceinline__ void fetch(u32 target, int token) const {
    constexpr int kColumns = kDim / 8, kPieces = kStep * kColumns;
#pragma unroll
    for (int i = 0; i < ceil_div(kPieces, kThreads); ++i) {
      const int piece = i * kThreads + threadIdx.x, r = piece / kColumns, column = piece % kColumns;
      if (kPieces % kThreads != 0 && piece >= kPieces) break;
      const bool present = token + r < keys;
      int id = ids[0];
#pragma unroll
      for (int page = 1; page < kIdsPerStep; ++page) {
        if (r >= page * TL_PAGE) id = ids[page];
      }
      const int row = block_row<TL_PAGE>(token + r, head);
      const u64 block = present ? id * static_cast<u64>(TL_BLOCK_BYTES) : 0;
      const u64 from = block / 2 + (present ? CacheLayout<kDim>::element(row, column) : 0);
      const u32 to = target + r * kPitch + column * 16;
      copy16(to, static_cast<const u16*>(a.key_cache) + from, present);
      copy16(to + kStep * kPitch, static_cast<const u16*>(a.value_cache) + from, present);
    }
  }
};

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kThreads)
    paged_attention_prefill(const __grid_constant__ tl::PrefillArguments a) {
  using namespace tl;
  extern __shared__ __align__(128) char memory[];
  const int warp = threadIdx.x / 32 / kParts, part = threadIdx.x / 32 % kParts;  // which rows, and which columns
  const int lane = threadIdx.x % 32;
  const Section section{static_cast<int>(blockIdx.x)};
  wait_for_previous_kernel();
  allow_next_kernel();
  const auto mine = Rows<kTokens>::find(a, blockIdx.y);
  if (mine.seq < 0) return;
  const u32 query = shared_address(memory), stages = query + kQueryBytes;
  const int keys = mine.keys(), first_key = mine.first_key<kStep>(a.window);

  // Row r is token r / kGroup, head r % kGroup of the section.
  constexpr int kColumns = kDim / 8;
  for (int piece = threadIdx.x; piece < kRows * kColumns; piece += kThreads) {
    const int r = piece / kColumns, column = piece % kColumns, token = r / kGroup;
    const u64 row = static_cast<u64>(mine.first + token) * TL_HEADS + section.head(r);
    const bool present = token < mine.count;
    copy16(query + r * kPitch + column * 16, a.query + (present ? row * kDim + column * 8 : 0), present);
  }
  Fetcher fetcher{a, mine.seq, section.kv_head(), keys};
  fetcher.fetch_ids(first_key);
  fetcher.fetch(stages, first_key);
  copy_commit();
  fetcher.fetch_ids(first_key + kStep);

  // For each of this lane's rows, the keys that it sees (low < key <= high) and its temperature.
  int low[kTiles][2], high[kTiles][2];
  float temperatures[kTiles][2];
#pragma unroll
  for (int i = 0; i < kTiles * 2; ++i) {
    const int r = (warp * kTiles + i / 2) * 16 + i % 2 * 8 + lane / 4;
    high[i / 2][i % 2] = mine.position_of(r);
    low[i / 2][i % 2] = first_seen(high[i / 2][i % 2], a.window) - 1;
    temperatures[i / 2][i % 2] = a.scale.temperature(high[i / 2][i % 2]);
  }
  AttendingWarp<kDim, kTiles, kStep, kOutput> state;
  int stage = 0;
  for (int key = first_key; key < keys; key += kStep, stage ^= 1) {
    copy_wait<0>();
    __syncthreads();
    if (key + kStep < keys) {
      fetcher.fetch(stages + (stage ^ 1) * kStageBytes, key + kStep);
      fetcher.fetch_ids(key + 2 * kStep);
    }
    copy_commit();
    int seen_after[kTiles][2], seen_to[kTiles][2];
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) {
      seen_after[i / 2][i % 2] = low[i / 2][i % 2] - key;
      seen_to[i / 2][i % 2] = high[i / 2][i % 2] - key;
    }
    const bool masked = mine.hides<kStep>(key, a.window);
    const auto adjust = [&](int t, float (&scores)[kStep / 8][4]) {
      a.scale.tune(scores, temperatures[t]);
      a.scale.cap(scores);
      if (!masked) return;
      mask_scores_above(scores, seen_to[t], lane);
      if (seen_after[t][1] >= 0) mask_scores_up_to(scores, seen_after[t], lane);
    };
    const u32 at = stages + stage * kStageBytes;
    const u32 values = at + kStep * kPitch + part * kOutput * 2;
    state.step(query + warp * kTiles * 16 * kPitch, at, values, a.scale.factor(), adjust, lane);
  }
#pragma unroll
  for (int i = 0; i < kTiles * 2; ++i) {
    const int t = i / 2, half = i % 2, r = (warp * kTiles + t) * 16 + half * 8 + lane / 4, token = r / kGroup;
    if constexpr (TL_SINKS) {
      state.rows[t].add_sink(half, a.scale.exponent_of(a.sinks[section.head(r)]), lane);
    }
    const float inverse = a.value_scale / quad_sum(state.rows[t].sum[half]);
    if (token >= mine.count || !section.has(r)) continue;
    const u64 row = static_cast<u64>(mine.first + token) * TL_HEADS + section.head(r);
    const u64 to = row * kDim + part * kOutput + lane % 4 * 2;
#pragma unroll
    for (int d = 0; d < kOutput / 8; ++d) {
      const u32 pair = pack_y(state.output[t][d][half * 2] * inverse, state.output[t][d][half * 2 + 1] * inverse);
      Output{a.output, a.y_factor}.put(to + d * 8, pair);
    }
  }
}
