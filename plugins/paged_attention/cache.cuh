// The layout of a block of the paged cache, and how tokens are copied to shared memory.
//
// A KV head's tokens are in groups of eight, and a group is made of the 8x8 matrices that tensor cores read, so that
// shared memory has the same layout as the cache and one bulk copy loads a whole page. If a token takes a multiple of
// 128 bytes, a group is [128 bytes of a token][8 tokens], and the eight 16-byte pieces of each 128 bytes are swizzled
// by the token's number: wgmma's 128-byte swizzle, its fastest operand. Otherwise a group is [piece of 16 bytes][8
// tokens]. Neither layout has bank conflicts.
//
// A block of the cache holds what all layers of a cache group keep of its tokens, so that the blocks of one layer's
// keys are TL_BLOCK_BYTES apart.
//
// TL_CACHE_TYPE is the RowType of elements (cuda/byte_rows.cuh): 16 bits, or bytes with one scale for all keys and one
// for all values. With a cache of bytes, attention computes in float16, which holds E4M3 and int8 exactly, and queries
// more precisely than bfloat16 does. TL_KEY_TYPE is the RowType of keys, 16 bits or that of values: keys of 16 bits are
// multiplied by queries in their type (TL_FP16), and weights by values of bytes in float16.
#pragma once

#include "cuda/async.cuh"
#include "cuda/byte_rows.cuh"

#ifndef TL_CACHE_TYPE
#define TL_CACHE_TYPE 0
#endif
#ifndef TL_KEY_TYPE
#define TL_KEY_TYPE TL_CACHE_TYPE
#endif

namespace tl {

constexpr RowType kKeyType = static_cast<RowType>(TL_KEY_TYPE), kValueType = static_cast<RowType>(TL_CACHE_TYPE);
constexpr bool kByteKeys = kKeyType != RowType::k16Bits, kByteValues = kValueType != RowType::k16Bits;
static_assert(kKeyType == kValueType || !kByteKeys, "keys have 16 bits or the type of values");
constexpr int kGroupTokens = 8, kKeyItemBytes = kByteKeys ? 1 : 2, kValueItemBytes = kByteValues ? 1 : 2;
constexpr bool kHalfWeights = kByteValues || TL_FP16;  // whether weights and values are multiplied in float16

template <int kDim, int kItemBytes = 2>
struct CacheLayout {
  static constexpr int kPiece = 16 / kItemBytes;  // elements of a piece
  static_assert(kDim % kPiece == 0);
  static constexpr u32 kTokenBytes = kDim * kItemBytes, kGroupBytes = kGroupTokens * kTokenBytes;
  static constexpr bool kSwizzled = kTokenBytes % 128 == 0;
  static constexpr u32 kRunBytes = kSwizzled ? 128 : 16;  // contiguous bytes of a token
  static constexpr int kRun = kRunBytes / kItemBytes;
  static constexpr u32 kMatrixBytes = kGroupTokens * kRunBytes;  // bytes of such runs of a group

  // The place in a block of the first run of row head * page + token.
  __device__ __forceinline__ static int begin(int row) {
    return row / kGroupTokens * (kGroupTokens * kDim) + row % kGroupTokens * kRun;
  }
  // The offset of element d of token `token` from begin(), in a group of `tokens` tokens; for a group of 1, the offset
  // is d.
  __device__ __forceinline__ static int offset(int d, int token, int tokens = kGroupTokens) {
    const int piece = d / kPiece, within = kSwizzled ? piece % 8 ^ token : 0;
    return d / kRun * tokens * kRun + within * kPiece + d % kPiece;
  }
  // The place in a block of element d of a row.
  __device__ __forceinline__ static int place(int row, int d) { return begin(row) + offset(d, row % kGroupTokens); }
  // The place in a block of the first element of piece `piece` of a row.
  __device__ __forceinline__ static int element(int row, int piece) { return place(row, piece * kPiece); }
  // The offset in bytes, from a group's beginning, of the piece that a lane passes to ldmatrix for token `token` of the
  // group. `odd`: the second of two neighbouring pieces; the first is number 2 * pair, with which pair_address() gives
  // the further pieces.
  __device__ __forceinline__ static u32 row_bytes(int token, int odd) {
    return kSwizzled ? token * kRunBytes + (odd ^ token) * 16 : token * kRunBytes + odd * kMatrixBytes;
  }
  // The address of pair `pair`, given that of pair 0. `at`: an offset from row_bytes() plus the group's address, which
  // is a multiple of 1024 if swizzled.
  __device__ __forceinline__ static u32 pair_address(u32 at, int pair) {
    return kSwizzled ? (at ^ pair % 4 * 32) + pair / 4 * kMatrixBytes : at + pair * 2 * kMatrixBytes;
  }
};

// The block of a layer's keys or values with number `block`.
__device__ __forceinline__ char* cache_block(void* cache, int block) {
  return static_cast<char*>(cache) + block * static_cast<u64>(TL_BLOCK_BYTES);
}
__device__ __forceinline__ const char* cache_block(const void* cache, int block) {
  return static_cast<const char*>(cache) + block * static_cast<u64>(TL_BLOCK_BYTES);
}
// The row, as CacheLayout counts rows, of a key or value head of the token in `slot`.
template <int kPage>
__device__ __forceinline__ int block_row(int slot, int kv_head) {
  return kv_head * kPage + slot % kPage;
}

// Stores an element of a key or value, or two neighbours, in a block; `factor` is the inverse of the scale of bytes.
template <RowType kType>
__device__ __forceinline__ void put_in_cache(void* block, int at, float value, float factor) {
  if constexpr (kType != RowType::k16Bits) {
    const u32 bytes = pack4<kType>(value * factor, 0.0f, 0.0f, 0.0f);
    static_cast<unsigned char*>(block)[at] = static_cast<unsigned char>(bytes);
  } else {
    static_cast<u16*>(block)[at] = pack1(value);
  }
}
template <RowType kType>
__device__ __forceinline__ void put_pair_in_cache(void* block, int at, float2 values, float factor) {
  if constexpr (kType != RowType::k16Bits) {
    const u32 bytes = pack4<kType>(values.x * factor, values.y * factor, 0.0f, 0.0f);
    static_cast<u16*>(block)[at / 2] = static_cast<u16>(bytes);
  } else {
    static_cast<u32*>(block)[at / 2] = pack2(values.x, values.y);
  }
}
// Packs two elements of a query as attention reads them.
__device__ __forceinline__ u32 pack_query(float lo, float hi) {
  return kByteKeys ? pack2_float16(lo, hi) : pack2(lo, hi);
}

// One warp's copies of up to kTokens consecutive tokens of a KV head to shared memory, in the layout of the cache. The
// first token is at the beginning of a block, or at a multiple of kTokens. Blocks are kBlockBytes apart.
template <int kDim, int kPage, int kTokens, int kItemBytes = 2, u64 kBlockBytes = TL_BLOCK_BYTES>
struct TokenCopy {
  using Layout = CacheLayout<kDim, kItemBytes>;
  static constexpr int kPageTokens = min_of(kPage, kTokens), kPages = kTokens / kPageTokens;
  static constexpr u32 kBytes = kTokens * Layout::kTokenBytes, kPageBytes = kPageTokens * Layout::kTokenBytes;
  static_assert(kPage % kGroupTokens == 0 && kTokens % kPageTokens == 0 && (kPage <= kTokens || kPage % kTokens == 0));

  int head;
  int token, present;           // the position of the first token, and the number of tokens
  const int (&blocks)[kPages];  // the cache blocks of the pages
  int lane;

  __device__ __forceinline__ static int whole_groups(int tokens) { return tokens & -kGroupTokens; }
  // The bytes that keys() and values() copy: for keys whole groups, for values only the tokens.
  __device__ __forceinline__ u32 key_bytes() const {
    return whole_groups(present + kGroupTokens - 1) * Layout::kTokenBytes;
  }
  __device__ __forceinline__ u32 value_bytes() const { return present * Layout::kTokenBytes; }
  __device__ __forceinline__ int page_tokens(int page) const {
    return min_of(present - page * kPageTokens, kPageTokens);
  }
  __device__ __forceinline__ const char* source(const void* cache, int page) const {
    const u32 row = head * kPage + token % kPage;
    return static_cast<const char*>(cache) + blocks[page] * kBlockBytes + row * Layout::kTokenBytes;
  }

  // Copies keys; called by the copying lanes. Keys past the last one are undefined: their scores are masked.
  __device__ __forceinline__ void keys(u32 target, const void* cache, u32 full) const {
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      const u32 bytes = whole_groups(page_tokens(page) + kGroupTokens - 1) * Layout::kTokenBytes;
      if (page > 0 && page_tokens(page) <= 0) break;
      copy_bytes(target + page * kPageBytes, source(cache, page), bytes, full, lane);
    }
  }
  // Copies values; called by the copying lanes after all lanes have called clear_behind().
  __device__ __forceinline__ void values(u32 target, const void* cache, u32 full) const {
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      const int count = page_tokens(page), whole = whole_groups(count);
      if (page > 0 && count <= 0) break;
      u32 to = target + page * kPageBytes;
      if (whole > 0) copy_bytes(to, source(cache, page), whole * Layout::kTokenBytes, full, lane);
      if (count <= whole) continue;
      const char* from = source(cache, page) + whole * Layout::kTokenBytes;
      to += whole * Layout::kTokenBytes;
#pragma unroll 1
      for (int run = 0; run < kDim / Layout::kRun; ++run) {
        copy_bytes(to + run * Layout::kMatrixBytes, from + run * Layout::kMatrixBytes,
                   (count - whole) * Layout::kRunBytes, full, lane);
      }
    }
  }
  // Sets values past the last one to zero, because a weight of 0 does not cancel a NaN.
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
