// The results of decode attention: those of the warps of a team and, where blocks share a pair, of all these blocks are
// combined and stored.
//
// Macros: those of decode.cuh.
#pragma once

#include "paged_attention/decode_loader.cuh"
#include "paged_attention/output.cuh"

namespace tl {

using State = TileState<kDim, kOctets, PairRows>;
constexpr int kPartFloats = ceil_div(kPartRows * (kDim + 2), 4) * 4;  // a multiple of 16 bytes
constexpr int kPartialFloats = kParts * kPartFloats;
// What a warp has: results of a part, and before that queries, if they are in shared memory.
#if TL_NEW_TOKENS > 1
constexpr int kWarpFloats = max_of(kPartFloats, PairRows::Query::kFloats);
#else
constexpr int kWarpFloats = kPartFloats;
#endif

// Shared memory: split table | each warp's result: rows of a part of dim sums, then maxima, then sums; later those of
// all blocks, if they share a pair | a flag that tells the last of these blocks | a barrier for each stage | stages
constexpr int kMaxStages = 8;
constexpr u32 kTableBytes = (sizeof(Table) + 15) / 16 * 16;
constexpr u32 kResultBytes = (max_of(TL_WARPS * kWarpFloats, 2 * TL_MAX_GRID * kPartRows) * 4 + 7) / 8 * 8;
constexpr u32 kResultOffset = kTableBytes, kFlagOffset = kResultOffset + kResultBytes;
constexpr u32 kBarrierOffset = kFlagOffset + 16;
constexpr u32 kOtherBytes = (kBarrierOffset + TL_WARPS * kMaxStages * 8 + 127) / 128 * 128;

// Writes a part of a warp's rows to shared memory: unnormalized output, maximum, sum.
__device__ __forceinline__ void put_result(const State& state, int part, float* result, int lane) {
#pragma unroll
  for (int i = 0; i < kPartOctets * 2; ++i) {
    const int row = i / 2 * 8 + lane % 4 * 2 + i % 2;
    const RowOctet<kDim>& rows = state.rows[part * kPartOctets + i / 2];
    const float sum = column_sum(rows.sum[i % 2]);
    if (row >= kPartRows) continue;
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) {
      result[row * kDim + State::element(d, lane)] = rows.output[d / 2][d % 2 * 2 + i % 2];
    }
    if (lane < 4) {
      result[kPartRows * kDim + row] = rows.maximum[i % 2];
      result[kPartRows * (kDim + 1) + row] = sum;
    }
  }
}

// Stores the result of a pair that one warp has computed.
__device__ __forceinline__ void store(const State& state, const Output& output, const PairRows& pair, float value_scale,
                                      int lane) {
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
    if (kCopiesNew && !pair.has(o)) break;
    const RowOctet<kDim>& rows = state.rows[o];
    const float inverse[2] = {value_scale / column_sum(rows.sum[0]), value_scale / column_sum(rows.sum[1])};
    const int row = o * 8 + lane / 4;
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      const float (&sums)[4] = rows.output[d];
      const u32 first = transpose_matrix(pack_y(sums[0] * inverse[0], sums[1] * inverse[1]));
      const u32 second = transpose_matrix(pack_y(sums[2] * inverse[0], sums[3] * inverse[1]));
      if (!pair.is_there(row)) continue;
      const u64 at = pair.first + PairRows::offset(row) + d * 16;
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

// Combines `count` results of a part, of kPartFloats floats; from(n) is the n-th. The team is the whole block;
// `scratch` is shared memory of count * kPartRows float2, and put(i, all) receives output elements i to i + 3, numbered
// as row * kDim + column.
//
// Results come from the L2 cache, whose latency bounds this function: a thread requests four elements of kAhead results
// at a time, and the first of these together with the maxima and sums.
template <class From, class Put>
__device__ __forceinline__ void combine(const Team& team, int count, float2* scratch, const From& from,
                                        const Put& put) {
  constexpr int kVectors = kPartRows * kDim / 4, kAhead = kDim > 256 ? 8 : 16;
  float4 got[kAhead];
  const auto request = [&](int vector, int first) {
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      if (first + n < count) got[n] = __ldcg(reinterpret_cast<const float4*>(from(first + n)) + vector);
    }
  };
  if (team.thread < kVectors) request(team.thread, 0);
  for (int i = team.thread; i < count * kPartRows; i += team.threads()) {
    const float* maxima = from(i / kPartRows) + kPartRows * kDim + i % kPartRows;
    scratch[i] = make_float2(__ldcg(maxima), __ldcg(maxima + kPartRows));
  }
  team.sync();
  for (int vector = team.thread; vector < kVectors; vector += team.threads()) {
    const float2* of_row = scratch + vector * 4 / kDim;
    Weighted all;
    for (int n = 0; n < count; ++n) all.maximum = fmaxf(all.maximum, of_row[n * kPartRows].x);
    for (int first = 0; first < count; first += kAhead) {
      if (first > 0 || vector != team.thread) request(vector, first);
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        if (first + n >= count) break;
        const float2 other = of_row[(first + n) * kPartRows];
        all.add(got[n], other.x, other.y);
      }
    }
    put(vector * 4, all);
  }
}

// The results of a pair that blocks workers.x to workers.y share.
struct PairResults {
  const DecodeArguments& a;
  const Team& team;
  PairRows rows;
  int2 workers;
  float* results;  // of a part, of the team's warps

  __device__ __forceinline__ bool alone() const { return workers.x == workers.y; }
  // The block in which a pair begins uses its second slot; blocks that continue the pair use their first.
  __device__ __forceinline__ float* slot(int worker, int part) const {
    return a.partials + (2 * worker + (worker == workers.x)) * kPartialFloats + part * kPartFloats;
  }
  // Stores elements i to i + 3 of a part.
  __device__ __forceinline__ void put(int part, int i, const Weighted& of) const {
    const float factor = a.value_scale / of.sum;
    const u32 pairs[2] = {pack_y(of.values.x * factor, of.values.y * factor),
                          pack_y(of.values.z * factor, of.values.w * factor)};
    const Output output{a.output, a.y_factor};
    if constexpr (kCopiesNew) {
      const int row = part * kPartRows + i / kDim;
      if (rows.is_there(row)) output.put(rows.first + PairRows::offset(row) + i % kDim, make_uint2(pairs[0], pairs[1]));
    } else if (rows.is_there(i / kDim)) {
      output.put(rows.first + i, make_uint2(pairs[0], pairs[1]));
    }
  }
  // Combines the results of the team's warps for a part.
  __device__ __forceinline__ void combine_warps(int part) const {
    float* mine = slot(blockIdx.x, part);
    for (int i = team.thread * 4; i < kPartRows * kDim; i += team.threads() * 4) {
      const int row = i / kDim;
      Weighted all;
#pragma unroll
      for (int w = 0; w < TL_WARPS; ++w) {
        if (w < team.warps) all.maximum = fmaxf(all.maximum, results[w * kWarpFloats + kPartRows * kDim + row]);
      }
#pragma unroll
      for (int w = 0; w < TL_WARPS; ++w) {
        if (w >= team.warps) break;
        const float* from = results + w * kWarpFloats;
        const float* maximum = from + kPartRows * kDim + row;
        all.add(*reinterpret_cast<const float4*>(from + i), maximum[0], maximum[kPartRows]);
      }
      if (alone()) {
        put(part, i, all);
      } else {
        *reinterpret_cast<float4*>(mine + i) = all.values;
        if (i % kDim == 0) {
          mine[kPartRows * kDim + row] = all.maximum;
          mine[kPartRows * (kDim + 1) + row] = all.sum;
        }
      }
    }
  }
  // The last of the blocks that share the pair combines their results. Called after combine_warps() for each part.
  __device__ __forceinline__ void combine_blocks(int pair, u32* flag) const {
    if (alone()) return;
    const int others = workers.y - workers.x;
    __threadfence();
    team.sync();
    if (team.thread == 0) *flag = atomicAdd(a.arrivals + pair, 1) == others;
    team.sync();
    if (*flag == 0) return;
    __threadfence();
    float2* scratch = reinterpret_cast<float2*>(results);
#pragma unroll 1
    for (int part = 0; part < kParts && rows.has(part); ++part) {
      if (part > 0) team.sync();  // the scratch of the part before has been read
      combine(
          team, others + 1, scratch, [&](int n) { return slot(workers.x + n, part); },
          [&](int i, const Weighted& of) { put(part, i, of); });
    }
    if (team.thread == 0) a.arrivals[pair] = 0;
  }
};

}  // namespace tl
