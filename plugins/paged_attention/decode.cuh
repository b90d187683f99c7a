// Paged grouped-query attention of one new token per sequence, whose key and value are in the cache already.
//
// Bytes: the keys and values, once: sum of lengths * 2 * kv_heads * head_dim * 2 (in 16 bits). FLOPs: 4 * heads *
// head_dim per cached token, a few per byte. Floor: bytes / bandwidth (Llama-3.1-8B, 64 sequences of 2048: 537 MB, 120
// us at 4.47 TB/s).
//
// One wave of blocks divides all pairs of a sequence and a KV head (split.cuh). A team of warps works on a pair. Each
// warp streams its own 32 tokens of a chunk through a private ring of bulk copies, which continues across chunks and
// pairs; the new token's key and value go from registers into the stage. A team of one warp finishes a pair alone;
// otherwise the warps combine their results in shared memory. The blocks that share a pair write to `partials`; the
// last one to finish combines the results in block order, so that they do not depend on timing.
//
// Lengths, block tables, slots, and the cache except for tokens of this step are read before the previous kernel has
// finished, so they must have been written before it began (see allow_next_kernel).
//
// Launch: 32 * TL_WARPS threads, any grid of at most one wave and at most TL_MAX_GRID blocks, `shared_bytes` of dynamic
// shared memory: kOtherBytes and at least two stages per warp. `partials` holds 2 * grid results of a pair,
// group * (head_dim + 2) floats each, padded to 16 bytes; `arrivals` num_seqs * kv_heads zeros, which the kernel leaves
// zero. Macros: TL_HEADS, TL_KV_HEADS, TL_HEAD_DIM, TL_PAGE (16 or a multiple of 32), TL_WARPS (1, 2, 4 or 8),
// TL_MAX_SEQS, TL_MAX_GRID, TL_SINKS (0 or 1), TL_NEW_TOKENS (the most sequences of the step that are consecutive
// tokens of one request), and those of cache.cuh, score_scale.cuh, seen_keys.cuh and output.cuh.
#include "paged_attention/decode_loader.cuh"
#include "paged_attention/output.cuh"

namespace tl {

constexpr int kPartialFloats = ceil_div(kGroup * (kDim + 2), 4) * 4;  // a multiple of 16 bytes
constexpr int kOctets = kGroup > 8 ? 2 : 1;
using State = TileState<kDim, kOctets>;

// Shared memory: split table | each warp's result: group rows of dim sums, then maxima, then sums; later those of all
// blocks, if they share a pair | a flag that tells the last of these blocks | a barrier for each stage | stages
constexpr int kMaxStages = 8;
constexpr u32 kTableBytes = (sizeof(Table) + 15) / 16 * 16;
constexpr u32 kResultBytes = (max_of(TL_WARPS * kPartialFloats, 2 * TL_MAX_GRID * kGroup) * 4 + 7) / 8 * 8;
constexpr u32 kResultOffset = kTableBytes, kFlagOffset = kResultOffset + kResultBytes;
constexpr u32 kBarrierOffset = kFlagOffset + 16;
constexpr u32 kOtherBytes = (kBarrierOffset + TL_WARPS * kMaxStages * 8 + 127) / 128 * 128;

// Writes a warp's rows to shared memory: unnormalized output, maximum, sum.
__device__ __forceinline__ void put_result(const State& state, float* result, int lane) {
#pragma unroll
  for (int i = 0; i < kOctets * 2; ++i) {
    const int row = i / 2 * 8 + lane % 4 * 2 + i % 2;
    const RowOctet<kDim>& rows = state.rows[i / 2];
    const float sum = column_sum(rows.sum[i % 2]);
    if (row >= kGroup) continue;
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) {
      result[row * kDim + State::element(d, lane)] = rows.output[d / 2][d % 2 * 2 + i % 2];
    }
    if (lane < 4) {
      result[kGroup * kDim + row] = rows.maximum[i % 2];
      result[kGroup * (kDim + 1) + row] = sum;
    }
  }
}

// Stores the result of a pair that one warp has computed.
__device__ __forceinline__ void store(const State& state, const Output& output, u64 first_element, float value_scale,
                                      int lane) {
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
    const RowOctet<kDim>& rows = state.rows[o];
    const float inverse[2] = {value_scale / column_sum(rows.sum[0]), value_scale / column_sum(rows.sum[1])};
    const int row = o * 8 + lane / 4;
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      const float (&sums)[4] = rows.output[d];
      const u32 first = transpose_matrix(pack_y(sums[0] * inverse[0], sums[1] * inverse[1]));
      const u32 second = transpose_matrix(pack_y(sums[2] * inverse[0], sums[3] * inverse[1]));
      if (row >= kGroup) continue;
      const u64 at = first_element + row * kDim + d * 16;
      if constexpr (kByteValues) {  // even elements, and odd ones
        output.put(at + lane % 4 * 4,
                   make_uint2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632)));
      } else {
        output.put(at + lane % 4 * 2, first);
        output.put(at + lane % 4 * 2 + 8, second);
      }
    }
  }
}

// Four neighbouring elements of a row, summed over parts of the keys, which are weighted by their maxima.
struct Weighted {
  float4 values = {};
  float maximum = kNoMaximum, sum = 0.0f;

  // Adds a part; `maximum` must be that of all parts.
  __device__ __forceinline__ void add(float4 more, float its_maximum, float its_sum) {
    const float factor = exp2_fast(its_maximum - maximum);
    sum += factor * its_sum;
    values.x += factor * more.x;
    values.y += factor * more.y;
    values.z += factor * more.z;
    values.w += factor * more.w;
  }
};

// Combines `count` results of kPartialFloats floats; from(n) is the n-th. The team is the whole block; `scratch` is
// shared memory of count * kGroup float2, and put(i, all) receives output elements i to i + 3, numbered as
// row * kDim + column.
//
// Results come from the L2 cache, whose latency bounds this function: a thread requests four elements of kAhead results
// at a time, and the first of these together with the maxima and sums.
template <class From, class Put>
__device__ __forceinline__ void combine(const Team& team, int count, float2* scratch, const From& from,
                                        const Put& put) {
  constexpr int kVectors = kGroup * kDim / 4, kAhead = 16;
  float4 got[kAhead];
  const auto request = [&](int vector, int first) {
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      if (first + n < count) got[n] = __ldcg(reinterpret_cast<const float4*>(from(first + n)) + vector);
    }
  };
  if (team.thread < kVectors) request(team.thread, 0);
  for (int i = team.thread; i < count * kGroup; i += team.threads()) {
    const float* maxima = from(i / kGroup) + kGroup * kDim + i % kGroup;
    scratch[i] = make_float2(__ldcg(maxima), __ldcg(maxima + kGroup));
  }
  team.sync();
  for (int vector = team.thread; vector < kVectors; vector += team.threads()) {
    const float2* of_row = scratch + vector * 4 / kDim;
    Weighted all;
    for (int n = 0; n < count; ++n) all.maximum = fmaxf(all.maximum, of_row[n * kGroup].x);
    for (int first = 0; first < count; first += kAhead) {
      if (first > 0 || vector != team.thread) request(vector, first);
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        if (first + n >= count) break;
        const float2 other = of_row[(first + n) * kGroup];
        all.add(got[n], other.x, other.y);
      }
    }
    put(vector * 4, all);
  }
}

// Ends a pair that blocks workers.x to workers.y share; the results of the team's warps are in `results`.
__device__ __forceinline__ void finish(const DecodeArguments& a, const Team& team, int pair, int2 workers,
                                       float* results, u32* flag) {
  const Output output{a.output, a.y_factor};
  const u64 first = static_cast<u64>(pair) * kGroup * kDim;
  // The block in which a pair begins uses its second slot; blocks that continue the pair use their first.
  const auto slot = [&](int worker) { return a.partials + (2 * worker + (worker == workers.x)) * kPartialFloats; };
  const bool alone = workers.x == workers.y;
  const auto put = [&](int i, const Weighted& of) {
    const float factor = a.value_scale / of.sum;
    const u32 pairs[2] = {pack_y(of.values.x * factor, of.values.y * factor),
                          pack_y(of.values.z * factor, of.values.w * factor)};
    output.put(first + i, make_uint2(pairs[0], pairs[1]));
  };
  float* mine = slot(blockIdx.x);
  for (int i = team.thread * 4; i < kGroup * kDim; i += team.threads() * 4) {
    const int row = i / kDim;
    Weighted all;
#pragma unroll
    for (int w = 0; w < TL_WARPS; ++w) {
      if (w < team.warps) all.maximum = fmaxf(all.maximum, results[w * kPartialFloats + kGroup * kDim + row]);
    }
#pragma unroll
    for (int w = 0; w < TL_WARPS; ++w) {
      if (w >= team.warps) break;
      const float* from = results + w * kPartialFloats;
      const float* maximum = from + kGroup * kDim + row;
      all.add(*reinterpret_cast<const float4*>(from + i), maximum[0], maximum[kGroup]);
    }
    if (alone) {
      put(i, all);
    } else {
      *reinterpret_cast<float4*>(mine + i) = all.values;
      if (i % kDim == 0) {
        mine[kGroup * kDim + row] = all.maximum;
        mine[kGroup * (kDim + 1) + row] = all.sum;
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
  combine(team, others + 1, reinterpret_cast<float2*>(results), [&](int n) { return slot(workers.x + n); }, put);
  if (team.thread == 0) a.arrivals[pair] = 0;
}

}  // namespace tl

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
  table.load(a.past_lens, a.num_seqs, a.window);
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
  PairLoader pairs(a, team, cursor, lane);
  int ahead = 0;
  for (; ahead < stages && loader.left > 0 && !loader.is_being_stored(); ++ahead) loader.issue();
  wait_for_previous_kernel();
  allow_next_kernel();
  State state;
  state.reset();
  ScoreScale scale;     // for the pair's query
  int last_unseen = 0;  // the last key before those that the query sees
  const auto load_pair = [&](int left) {
    const int position = cursor.length - 1;
    scale = a.scale.at(position);
    last_unseen = first_seen(position, a.window) - 1;
    pairs.load(cursor, left);
    state.load_query(a.query + static_cast<u64>(cursor.pair) * kGroup * kDim, kGroup, lane);
  };
  load_pair(share.units);
  for (; ahead < stages; ++ahead) loader.issue();
  float* results = reinterpret_cast<float*>(memory + kResultOffset) + team.index * team.warps * kPartialFloats;
  u32* flag = reinterpret_cast<u32*>(memory + kFlagOffset);
  const bool alone = table.whole && team.warps == 1;
  bool begins = cursor.chunk == 0;  // whether this block has the pair's first chunk
  for (int left = share.units; left > 0; --left) {
    const int token = cursor.first_token + cursor.chunk * loader.chunk_tokens + team.warp * kTileTokens;
    const int last = cursor.length - 1 - token;
    if (last >= 0) {
      barrier_wait(ring.full(), ring.parity);
      if (last < kTileTokens) pairs.added.store_in_stage(memory + (ring.keys() - shared), last, lane);
      state.add(ring.keys(), ring.values(), last_unseen - token, last, scale, lane);
      ring.advance();
      __syncwarp();  // the stage may be overwritten
    }
    loader.issue();
    const int pair = cursor.pair;
    const bool ends = cursor.chunk + 1 == cursor.end_chunk || left == 1;
    if constexpr (TL_SINKS) {  // only one warp adds sinks
      if (ends && begins && team.warp == 0) {
        state.add_sinks(a.sinks + cursor.head() * kGroup, kGroup, scale, lane);
      }
    }
    cursor.next();
    if (!ends) continue;
    begins = true;
    if (left > 1) load_pair(left - 1);  // prefetched while this pair ends
    if (alone) {
      store(state, Output{a.output, a.y_factor}, static_cast<u64>(pair) * kGroup * kDim, a.value_scale, lane);
    } else {
      put_result(state, results + team.warp * kPartialFloats, lane);
      team.sync();
      finish(a, team, pair, share.workers_of(table, pair), results, flag);
      team.sync();
    }
    state.reset();
  }
}
