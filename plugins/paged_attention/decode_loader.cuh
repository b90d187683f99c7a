// Loads what decode attention needs into shared memory: rings of cached tokens, one for each warp.
//
// Macros: those of decode.cuh.
#pragma once

#include "paged_attention/decode_rows.cuh"

namespace tl {

using KeyCopy = TokenCopy<kDim, TL_PAGE, kTileTokens, kKeyItemBytes>;
using ValueCopy = TokenCopy<kDim, TL_PAGE, kTileTokens, kValueItemBytes>;
constexpr u32 kStageBytes = KeyCopy::kBytes + ValueCopy::kBytes;

struct DecodeArguments {
  void* output;  // see output.cuh
  const u16* query;
  const void* key_cache;  // see cache.cuh
  const void* value_cache;
  const int* past_lens;
  const int* block_tables;  // [seqs, max_blocks]
  float* partials;
  u32* arrivals;
  const float* sinks;    // [heads], if TL_SINKS is 1
  const int* of_tokens;  // if sequences have one new token, its slot [seqs]: block * page + offset; else cu_seqlens
  float y_factor;
  int num_seqs, max_blocks, shared_bytes, window;
  float value_scale;
  ScoreScale scale;
};

// The calling warp's team in its block. Each team has a named barrier, from number 1 on.
struct Team {
  int warps, index, warp, thread;  // warp and thread: numbers within the team

  // A team of 1 << shift warps.
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

// A warp's ring of stages; a stage holds keys and values of 32 tokens. Producer and consumer both count the uses of the
// ring.
struct Ring {
  u32 data, barriers;
  int stages;
  int stage = 0;
  u32 parity = 0;

  __device__ __forceinline__ u32 keys() const { return data + stage * kStageBytes; }
  __device__ __forceinline__ u32 values() const { return keys() + KeyCopy::kBytes; }
  __device__ __forceinline__ u32 full() const { return barriers + stage * 8; }
  __device__ __forceinline__ void advance() {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Copies this warp's 32 tokens of each chunk; if sequences have one new token, all but that (see NewToken). The numbers
// of the cache blocks are loaded one chunk ahead. A chunk that ends before the warp's tokens uses no stage.
struct Loader {
  const DecodeArguments& a;
  Cursor<Table> cursor;
  Ring ring;
  int left, warp, lane, chunk_tokens;
  int blocks[KeyCopy::kPages] = {};

  __device__ __forceinline__ int token() const {
    return cursor.first_token + cursor.chunk * chunk_tokens + warp * kTileTokens;
  }
  __device__ __forceinline__ void fetch_blocks() {
    if (left == 0) return;
    const int* table = a.block_tables + static_cast<u64>(cursor.seq()) * a.max_blocks;
#pragma unroll
    for (int i = 0; i < KeyCopy::kPages; ++i) {
      const int at = token() + i * TL_PAGE;
      if (at < cursor.length) blocks[i] = table[at / TL_PAGE];
    }
  }
  // Whether the previous kernel may still be storing tokens that issue() would copy: new tokens, of which there are
  // fewer than TL_NEW_TOKENS before the item's last one.
  __device__ __forceinline__ bool is_being_stored() const {
    return kCopiesNew && token() + kTileTokens > cursor.length - TL_NEW_TOKENS;
  }
  __device__ __forceinline__ void issue() {
    if (left == 0) return;
    if (token() < cursor.length) {
      const int cached = min_of(cursor.length - !kCopiesNew - token(), kTileTokens);
      const int head = Section{cursor.head()}.kv_head();
      const KeyCopy keys{head, token(), cached, blocks, lane};
      const ValueCopy values{head, token(), cached, blocks, lane};
      values.clear_behind(ring.values());
      if (copying_lane()) {
        expect_bytes(ring.full(), keys.key_bytes() + values.value_bytes());
        if (cached > 0) {
          keys.keys(ring.keys(), a.key_cache, ring.full());
          values.values(ring.values(), a.value_cache, ring.full());
        }
      }
      stage_commit(ring.full());
      ring.advance();
    }
    if (--left > 0) cursor.next();
    fetch_blocks();
  }
};

// The key and value of a sequence's only new token for a KV head, in registers of the warp that attends to them:
// 16-byte pieces as in CacheLayout, the key's first.
struct NewToken {
  using Keys = KeyCopy::Layout;
  using Values = ValueCopy::Layout;
  static constexpr int kOfKey = kDim / Keys::kPiece, kPieces = kOfKey + kDim / Values::kPiece;
  static constexpr int kOfLane = ceil_div(kPieces, 32);
  static constexpr bool kAlike = kKeyItemBytes == kValueItemBytes;
  uint4 pieces[kOfLane] = {};

  // Calls use(piece, is_value, p) for each piece of this lane; p is its number in the key or value.
  template <class Pieces, class Use>
  __device__ __forceinline__ static void each(Pieces& pieces, int lane, const Use& use) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int at = lane + i * 32;
      if (at < kPieces) use(pieces[i], at >= kOfKey, kAlike ? at % kOfKey : at >= kOfKey ? at - kOfKey : at);
    }
  }
  // Loads the key and value from a row of a block of keys and of one of values.
  __device__ __forceinline__ void load(const char* keys, const char* values, int row, int lane) {
    each(pieces, lane, [&](uint4& piece, bool is_value, int p) {
      const char* from = is_value ? values : keys;
      const int place =
          kAlike || is_value ? Values::element(row, p) * kValueItemBytes : Keys::element(row, p) * kKeyItemBytes;
      piece = *reinterpret_cast<const uint4*>(from + place);
    });
  }
  // Stores the key and value in a stage whose copies have arrived. Later copies into the stage are ordered after these
  // stores.
  __device__ __forceinline__ void store_in_stage(char* stage, int token, int lane) const {
    each(pieces, lane, [&](const uint4& piece, bool is_value, int p) {
      char* to = stage + is_value * KeyCopy::kBytes;
      const int place =
          kAlike || is_value ? Values::element(token, p) * kValueItemBytes : Keys::element(token, p) * kKeyItemBytes;
      *reinterpret_cast<uint4*>(to + place) = piece;
    });
    fence_async_copies();
    __syncwarp();
  }
};

// Loads what a warp needs for a pair of a sequence and a KV head: the new token, if this warp attends to it. Slots are
// prefetched one pair ahead.
struct PairLoader {
  const DecodeArguments& a;
  const Team& team;
  int lane, next_slot;
  NewToken added;

  __device__ __forceinline__ PairLoader(const DecodeArguments& arguments, const Team& of, const Cursor<Table>& first,
                                        int of_lane)
      : a(arguments), team(of), lane(of_lane), next_slot(a.of_tokens[first.seq()]) {}
  // Called after the previous kernel has ended. `left`: the chunks that are left to the team.
  __device__ __forceinline__ void load(const Cursor<Table>& cursor, int left) {
    const int slot = next_slot, last = cursor.length - 1 - cursor.first_token;
    next_slot = a.of_tokens[min_of(cursor.pair + cursor.stride, a.num_seqs * kAllSections - 1) / kAllSections];
    const bool reaches_it = cursor.end_chunk - cursor.chunk <= left;
    if (!reaches_it || (last / kTileTokens & team.warps - 1) != team.warp) return;
    const int block = slot / TL_PAGE;
    added.load(cache_block(a.key_cache, block), cache_block(a.value_cache, block),
               block_row<TL_PAGE>(slot, Section{cursor.head()}.kv_head()), lane);
  }
};

}  // namespace tl
