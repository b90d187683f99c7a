// A pair whose heads are made here of a row of a QKV product: its queries, and the new token's key and value, which go
// into the cache, too.
//
// A team's warps make heads in turns, in shared memory. Macros: those of decode.cuh and turned_heads.cuh.
#pragma once

#include "paged_attention/decode_loader.cuh"
#include "paged_attention/turned_heads.cuh"

namespace tl {

class PairHeads : public Pair {
  static constexpr int kPitch = kDim + 8;                   // of queries: reading eight has no bank conflicts
  static constexpr u32 kTokenOffset = kGroup * kPitch * 2;  // of the key, then the value, as in the cache
  static constexpr int kBatch = min_of(kGroup + 2, kPairs == 1 ? 10 : 6);  // heads that a warp has under way
  static constexpr int kTogether = kPairs == 1 ? 4 : 2;                    // and that it makes at a time
  char* memory_;
  HeadNorm query_norm_, key_norm_;
  HeadAngles angles_;
  HeadWords words_[kBatch];
  int heads_ = 0;  // of the pair, that the team makes

 public:
  static constexpr u32 kBytes = kTokenOffset + 2 * kDim * kCacheItemBytes;

  // What is older than the product is loaded: the norms' weights, and the angles of the first pair.
  __device__ __forceinline__ PairHeads(const DecodeArguments& a, const Team& team, const Cursor<Table>& first,
                                       char* memory, int lane)
      : Pair(a, team, first, lane), memory_(memory) {
    if constexpr (TL_NORM) {
      query_norm_.load(a.query_norm, lane);
      key_norm_.load(a.key_norm, lane);
    }
    angles_.load(a.cos, a.sin, first.seq(), lane);
  }
  // Behind the previous kernel; nothing is made before begin().
  template <class State>
  __device__ __forceinline__ void load(const Cursor<Table>& cursor, int left, State&) {
    const int before = seq;
    enter(cursor, left);
    if (seq != before) angles_.load(a.cos, a.sin, seq, lane);
    heads_ = adds ? kGroup + 2 : kGroup;
    load_from(0);
  }
  // All of the team's warps are done with what its memory held.
  template <class State>
  __device__ __forceinline__ void begin(State& state) {
    make_from(0);
#pragma unroll 1
    for (int first = kBatch * team.warps; first < heads_; first += kBatch * team.warps) {
      load_from(first);
      make_from(first);
    }
    team.sync();
    state.load_query(reinterpret_cast<const u16*>(memory_), kPitch, kGroup, lane);
    if (!is_mine) return;
    added.load(reinterpret_cast<const uint4*>(memory_ + kTokenOffset), lane);
    added.store(a.key_cache, a.value_cache, row(), lane);
  }

 private:
  __device__ __forceinline__ int index_of(int first, int n) const { return first + n * team.warps + team.warp; }
  // Of the row: of head `index` of the pair, queries first.
  __device__ __forceinline__ int number_of(int index) const {
    return index < kGroup ? head * kGroup + index : TL_HEADS + (index - kGroup) * TL_KV_HEADS + head;
  }
  __device__ __forceinline__ void load_from(int first) {
    const u16* row = a.rows + static_cast<u64>(seq) * ((TL_HEADS + 2 * TL_KV_HEADS) * kDim);
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int index = index_of(first, n);
      if (index < heads_) words_[n].load(row + number_of(index) * kDim, lane);
    }
  }
  __device__ __forceinline__ void make_from(int first) {
#pragma unroll
    for (int n = 0; n < kBatch; n += kTogether) {
      if (index_of(first, n) >= heads_) break;
      make_together(first, n);
    }
  }
  // Some may be heads of no pair, which are not stored.
  __device__ __forceinline__ void make_together(int first, int n) {
    TurnedHead made[kTogether];
#pragma unroll
    for (int i = n; i < min_of(n + kTogether, kBatch); ++i) {
      const int index = index_of(first, i);
      const HeadNorm norm = HeadNorm::one_of(index < kGroup, query_norm_, key_norm_);
      made[i - n] = TurnedHead(words_[i], index > kGroup, norm, a.epsilon, angles_, lane);
    }
#pragma unroll
    for (int i = n; i < min_of(n + kTogether, kBatch); ++i) store(index_of(first, i), made[i - n]);
  }
  __device__ __forceinline__ void store(int index, const TurnedHead& head) const {
    if (index < kGroup) {
      u32* target = reinterpret_cast<u32*>(memory_ + index * kPitch * 2);
      head.store([&](int d, float2 two) { target[d / 2] = pack_query(two.x, two.y); }, lane);
    } else if (index < heads_) {
      const bool is_value = index > kGroup;
      char* target = memory_ + kTokenOffset + is_value * kDim * kCacheItemBytes;
      const float factor = is_value ? a.value_factor : a.key_factor;
      head.store([&](int d, float2 two) { put_pair_in_cache(target, d, two, factor); }, lane);
    }
  }
};

}  // namespace tl
