// How a block of the paged cache lays out its tokens, and how they reach shared memory.
//
// A KV head's tokens lie in groups of eight, and a group in the 8x8 matrices that tensor cores read, so that shared
// memory holds tokens just as the cache does, and a single bulk copy brings all of a page. Where head_dim is a multiple
// of 64, a group is [dim / 64][8 tokens][64 elements], and the eight pieces of 16 bytes in a token's 128 are permuted
// by the token's number: wgmma's 128-byte swizzle, its fastest operand. Else it is [dim / 8][8 tokens][8 elements].
// Neither layout has bank conflicts.
#pragma once

#include "cuda/async.cuh"

namespace tl {

constexpr int kGroupTokens = 8, kPiece = 8;  // elements of a piece: 16 bytes

template <int kDim>
struct CacheLayout {
  static_assert(kDim % kPiece == 0);
  static constexpr bool kSwizzled = kDim % 64 == 0;
  static constexpr int kRun = kSwizzled ? 64 : kPiece;  // elements of a token side by side
  static constexpr u32 kTokenBytes = kDim * 2, kGroupBytes = kGroupTokens * kTokenBytes;
  static constexpr u32 kRunBytes = kRun * 2, kMatrixBytes = kGroupTokens * kRunBytes;  // of such runs of a group

  // The first element of piece `piece` of row (block * kv_heads + head) * page + token.
  __device__ __forceinline__ static u64 element(u64 row, int piece) {
    const int token = row % kGroupTokens, runs = piece * kPiece / kRun;
    const int within = kSwizzled ? piece % 8 ^ token : 0;
    return row / kGroupTokens * (kGroupTokens * kDim) + (runs * kGroupTokens + token) * kRun + within * kPiece;
  }
  // Bytes from a group to the piece that ldmatrix wants of the lane whose row is token `token` of the group. `odd`: of
  // two neighbouring pieces the second; the first is number 2 * pair, with which pair_bytes() tells where to go on.
  __device__ __forceinline__ static u32 row_bytes(int token, int odd) {
    return kSwizzled ? token * kRunBytes + (odd ^ token) * 16 : token * kRunBytes + odd * kMatrixBytes;
  }
  // The address of pair `pair`, from that of pair 0; `at` comes from row_bytes() and a multiple of 1024 if swizzled.
  __device__ __forceinline__ static u32 pair_address(u32 at, int pair) {
    return kSwizzled ? (at ^ pair % 4 * 32) + pair / 4 * kMatrixBytes : at + pair * 2 * kMatrixBytes;
  }
};

// One warp's copies of up to kTokens consecutive tokens of a KV head, laid out in shared memory as in the cache. The
// tokens begin where a cache block does, or at a multiple of kTokens.
template <int kDim, int kPage, int kKvHeads, int kTokens>
struct TokenCopy {
  using Layout = CacheLayout<kDim>;
  static constexpr int kPageTokens = min_of(kPage, kTokens), kPages = kTokens / kPageTokens;
  static constexpr u32 kBytes = kTokens * Layout::kTokenBytes, kPageBytes = kPageTokens * Layout::kTokenBytes;
  static_assert(kPage % kGroupTokens == 0 && kTokens % kPageTokens == 0 && (kPage <= kTokens || kPage % kTokens == 0));

  int head, token, present;     // the first token; how many there are, at least one
  const int (&blocks)[kPages];  // the cache blocks of the pages
  int lane;

  __device__ __forceinline__ static int whole_groups(int tokens) { return tokens & -kGroupTokens; }
  // Bytes that keys() and values() copy: of keys whole groups, of values the tokens.
  __device__ __forceinline__ u32 key_bytes() const {
    return whole_groups(present + kGroupTokens - 1) * Layout::kTokenBytes;
  }
  __device__ __forceinline__ u32 value_bytes() const { return present * Layout::kTokenBytes; }
  __device__ __forceinline__ int page_tokens(int page) const {
    return min_of(present - page * kPageTokens, kPageTokens);
  }
  __device__ __forceinline__ const u16* source(const u16* cache, int page) const {
    return cache + ((static_cast<u64>(blocks[page]) * kKvHeads + head) * kPage + token % kPage) * kDim;
  }

  // Copies keys; the copying lanes call it. Keys past the last one are whatever the cache or the target holds: their
  // scores are masked.
  __device__ __forceinline__ void keys(u32 target, const u16* cache, u32 full) const {
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      const u32 bytes = whole_groups(page_tokens(page) + kGroupTokens - 1) * Layout::kTokenBytes;
      if (page > 0 && page_tokens(page) <= 0) break;
      copy_bytes(target + page * kPageBytes, source(cache, page), bytes, full, lane);
    }
  }
  // Copies values; the copying lanes call it after all lanes have called clear_behind().
  __device__ __forceinline__ void values(u32 target, const u16* cache, u32 full) const {
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      const int count = page_tokens(page), whole = whole_groups(count);
      if (page > 0 && count <= 0) break;
      u32 to = target + page * kPageBytes;
      if (whole > 0) copy_bytes(to, source(cache, page), whole * Layout::kTokenBytes, full, lane);
      if (count <= whole) continue;
      const u16* from = source(cache, page) + whole * kDim;
      to += whole * Layout::kTokenBytes;
#pragma unroll 1
      for (int run = 0; run < kDim / Layout::kRun; ++run) {
        copy_bytes(to + run * Layout::kMatrixBytes, from + run * kGroupTokens * Layout::kRun,
                   (count - whole) * Layout::kRunBytes, full, lane);
      }
    }
  }
  // Values past the last one become zeros: a weight of 0 does not cancel a NaN.
  __device__ __forceinline__ void clear_behind(u32 target) const {
    if (present >= kTokens) return;
#pragma unroll 4
    for (u32 at = present / kGroupTokens * Layout::kGroupBytes + lane * 16; at < kBytes; at += 32 * 16) {
      const int row = at / Layout::kGroupBytes * kGroupTokens + at / Layout::kRunBytes % kGroupTokens;
      if (row >= present) store_zeros16(target + at);
    }
    fence_async_copies();
    __syncwarp();
  }
};

}  // namespace tl
