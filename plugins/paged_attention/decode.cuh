// Paged grouped-query attention of few new tokens per sequence, whose keys and values are in the cache already: one,
// and drafts after it.
//
// Bytes: the keys and values, once: sum of lengths * 2 * kv_heads * head_dim * 2 (in 16 bits). FLOPs: 4 * heads *
// head_dim per cached token, a few per byte. Floor: bytes / bandwidth (Llama-3.1-8B, 64 sequences of 2048: 537 MB, 120
// us at 4.47 TB/s).
//
// One wave of blocks divides all pairs of an item, the new tokens of a sequence (items.cuh), and a KV head or, if more
// than 16 query heads share one, a section of these (sections.cuh), among them (split.cuh).
// A team of warps works on a pair, with the rows of all its tokens, so that the cache is read once for them. Each warp
// streams its own 32 tokens of a chunk through a private ring of bulk copies, which continues across chunks and pairs;
// if there is but one new token, its key and value go from registers into the stage. A team of one warp finishes a pair
// alone; otherwise the warps combine their results in shared memory. The blocks that share a pair write to `partials`;
// the last one to finish combines the results in block order, so that they do not depend on timing.
//
// Lengths, block tables, slots, and the cache except for tokens of this step are read before the previous kernel has
// finished, so they must have been written before it began (see allow_next_kernel).
//
// Launch: 32 * TL_WARPS threads, any grid of at most one wave and at most TL_MAX_GRID blocks, `shared_bytes` of dynamic
// shared memory: kOtherBytes and at least two stages per warp. `partials` holds 2 * grid results of a pair,
// kPartialFloats each; `arrivals` a zero for each pair, which the kernel leaves zero. Macros: TL_HEADS, TL_KV_HEADS,
// TL_HEAD_DIM, TL_PAGE (16 or a multiple of 32), TL_WARPS (1, 2, 4 or 8), TL_NEW_TOKENS (the most new tokens of a
// sequence), TL_ITEM_TOKENS (the most of an item), TL_MAX_ITEMS, TL_MAX_GRID, TL_SINKS (0 or 1), and those of
// cache.cuh, score_scale.cuh, seen_keys.cuh and output.cuh.
#include "paged_attention/decode_results.cuh"

extern "C" __global__ void __launch_bounds__(32 * TL_WARPS)
    paged_attention_decode(const __grid_constant__ tl::DecodeArguments a) {
  using namespace tl;
  extern __shared__ __align__(128) char memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int stages = min_of(kMaxStages, (a.shared_bytes - kOtherBytes) / (TL_WARPS * kStageBytes));
  const u32 shared = shared_address(memory);
  Ring ring{shared + kOtherBytes + warp * stages * kStageBytes, shared + kBarrierOffset + warp * kMaxStages * 8,
            stages};
  if (lane < stages) barrier_init(ring.barriers + lane * 8, kFullArrivals);
  barrier_init_fence();
  Table& table = *reinterpret_cast<Table*>(memory);
  table.load(a.past_lens, a.of_tokens, a.num_seqs, a.window);
  __syncthreads();
  if (threadIdx.x < 32) table.build();
  __syncthreads();
  const Team team(table.chunk_shift - kTileShift);
  const Share<Table> share(table, team.index);
  if (share.units == 0) {
    wait_for_previous_kernel();
    return;
  }
  Cursor<Table> cursor = share.cursor;
  Loader loader{a, cursor, ring, share.units, team.warp, lane, table.chunk_tokens()};
  loader.fetch_blocks();
#if TL_NEW_TOKENS == 1
  PairLoader pairs(a, team, cursor, lane);
#endif
  int ahead = 0;
  for (; ahead < stages && loader.left > 0 && !loader.is_being_stored(); ++ahead) loader.issue();
  wait_for_previous_kernel();
  allow_next_kernel();
#if TL_NEW_TOKENS > 1
  float* results = reinterpret_cast<float*>(memory + kResultOffset) + team.index * team.warps * kWarpFloats;
  for (; ahead < stages; ++ahead) loader.issue();
  State state{SharedQuery<kDim, kOctets>(results + team.warp * kWarpFloats, lane)};
  state.reset();
  const ScoreScale& scale = a.scale;
  int count = 0;  // tokens of the pair
  const auto load_pair = [&](int) {
    count = cursor.count();
    const PairRows rows(table, cursor.pair);
    state.load_query(a.query + rows.first, rows, lane);
  };
#else
  State state;
  state.reset();
  ScoreScale scale;     // for the pair's query
  int last_unseen = 0;  // the last key before those that the query sees
  const auto load_pair = [&](int left) {
    const int position = cursor.length - 1;
    scale = a.scale.at(position);
    last_unseen = first_seen(position, a.window) - 1;
    pairs.load(cursor, left);
    const PairRows rows(table, cursor.pair);
    state.load_query(a.query + rows.first, rows, lane);
  };
#endif
  load_pair(share.units);
#if TL_NEW_TOKENS == 1
  for (; ahead < stages; ++ahead) loader.issue();
  float* results = reinterpret_cast<float*>(memory + kResultOffset) + team.index * team.warps * kPartFloats;
#endif
  u32* flag = reinterpret_cast<u32*>(memory + kFlagOffset);
  const bool alone = table.whole && team.warps == 1;
  bool begins = cursor.chunk == 0;  // whether this block has the pair's first chunk
  for (int left = share.units; left > 0; --left) {
    const int token = cursor.first_token + cursor.chunk * loader.chunk_tokens + team.warp * kTileTokens;
    const int last = cursor.length - 1 - token;
    if (last >= 0) {
      barrier_wait(ring.full(), ring.parity);
#if TL_NEW_TOKENS > 1
      const SeenByEach seen{token, cursor.length - count, count, a.window, a.scale};
      if (kOctets > 1 && count * kGroup <= 8) {
        state.template add<1>(ring.keys(), ring.values(), seen, scale, lane);
      } else {
        state.add(ring.keys(), ring.values(), seen, scale, lane);
      }
#else
      if (last < kTileTokens) pairs.added.store_in_stage(memory + (ring.keys() - shared), last, lane);
      const SeenByOne seen{last_unseen - token, last};
      state.add(ring.keys(), ring.values(), seen, scale, lane);
#endif
      ring.advance();
      __syncwarp();  // the stage may be overwritten
    }
    loader.issue();
    const int pair = cursor.pair;
    const bool ends = cursor.chunk + 1 == cursor.end_chunk || left == 1;
    if constexpr (TL_SINKS) {  // only one warp adds sinks
      if (ends && begins && team.warp == 0) {
        const PairRows rows(table, cursor.pair);
        state.add_sinks(a.sinks + rows.section.first_head(), rows, scale, lane);
      }
    }
    cursor.next();
    if (!ends) continue;
    begins = true;
    if (!kCopiesNew && left > 1) load_pair(left - 1);  // prefetched while this pair ends
    if (alone) {
      store(state, Output{a.output, a.y_factor}, PairRows(table, pair), a.value_scale, lane);
    } else {
      const PairRows rows(table, pair);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (!rows.has(part)) break;
        if (part > 0) {
          team.sync();  // the results of the part before have been read
        } else {
          __syncwarp();  // queries, which may lie where results go, have been written and read
        }
        put_result(state, part, results + team.warp * kWarpFloats, lane);
        team.sync();
        PairResults{a, team, rows, share.workers_of(table, pair), results}.combine_warps(part);
      }
      PairResults{a, team, rows, share.workers_of(table, pair), results}.combine_blocks(pair, flag);
      team.sync();
    }
    if (kCopiesNew && left > 1) load_pair(left - 1);
    state.reset();
  }
}
