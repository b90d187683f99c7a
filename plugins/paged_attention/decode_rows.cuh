// The rows of decode attention: of a pair of an item (items.cuh) and a section of query heads (sections.cuh), row r is
// token r / kGroup and head r % kGroup of the section.
//
// Macros: those of decode.cuh.
#pragma once

#include "paged_attention/kept_query.cuh"
#include "paged_attention/score_scale.cuh"
#include "paged_attention/sections.cuh"
#include "paged_attention/split.cuh"
#include "paged_attention/tile.cuh"

namespace tl {

constexpr int kDim = TL_HEAD_DIM;
constexpr int kRows = TL_ITEM_TOKENS * kGroup, kOctets = ceil_div(kRows, 8);
static_assert(kDim % 16 == 0 && kGroup <= 16 && TL_ITEM_TOKENS <= TL_NEW_TOKENS);

constexpr int kWarpShift = TL_WARPS == 1 ? 0 : TL_WARPS == 2 ? 1 : TL_WARPS == 4 ? 2 : 3;
static_assert(TL_WARPS == 1 << kWarpShift, "1, 2, 4 or 8 warps");

// With few sequences, the rows of an item are an octet.
using Items = SplitItems<TL_MAX_ITEMS, TL_NEW_TOKENS, TL_ITEM_TOKENS, min_of(max_of(8 / kGroup, 1), TL_ITEM_TOKENS)>;
using Table = SplitTable<kAllSections, Items, kTileShift + kWarpShift, kWarpShift, TL_PAGE>;

// Whether new tokens are copied from the cache, after the previous kernel has stored them.
constexpr bool kCopiesNew = TL_NEW_TOKENS > 1;

// Results of a pair are combined in parts: by octets, or all rows at once if they are of one token.
constexpr int kParts = kCopiesNew ? kOctets : 1, kPartOctets = kOctets / kParts;
constexpr int kPartRows = kCopiesNew ? min_of(kRows, 8) : kGroup;

// Which keys of a tile the rows of one token see: those with low < number in the tile <= high.
struct SeenByOne {
  int low, high;

  // Multiplies products of queries and keys by what the rows' scales differ in.
  __device__ __forceinline__ void tune(float (&)[2][4], int, int) const {}
  // Sets the scores of unseen keys to minus infinity.
  __device__ __forceinline__ void mask(float (&scores)[2][4], int, int lane) const {
    if (low >= 0 || high < kTileTokens - 1) mask(scores, lane);
  }
  __device__ __forceinline__ void mask(float (&scores)[2][4], int lane) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int key = i / 2 * 8 + lane / 4;
      if (key <= low || key > high) scores[i / 4][i % 4] = __int_as_float(kMinusInfinity);
    }
  }
};

// The same for `count` tokens, at `position` and after it. The tile's first key is number `first_key`.
struct SeenByEach {
  int first_key, position, count, window;
  const ScoreScale& scale;

  // The position of the first or second row of a lane in an octet; rows past the last token are like its rows.
  __device__ __forceinline__ int position_of(int octet, int lane, int which) const {
    return position + min_of((octet * 8 + lane % 4 * 2 + which) / kGroup, count - 1);
  }
  __device__ __forceinline__ void tune(float (&scores)[2][4], int octet, int lane) const {
#if TL_TEMPERATURE
    const float factors[2] = {scale.temperature(position_of(octet, lane, 0)),
                              scale.temperature(position_of(octet, lane, 1))};
#pragma unroll
    for (int i = 0; i < 8; ++i) scores[i / 4][i % 4] *= factors[i % 2];
#endif
  }
  __device__ __forceinline__ void mask(float (&scores)[2][4], int octet, int lane) const {
    const bool all_see = first_key + kTileTokens - 1 <= position;
    if (all_see && first_seen(position + count - 1, window) <= first_key) return;
    int low[2], high[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      high[j] = position_of(octet, lane, j) - first_key;
      low[j] = first_seen(high[j] + first_key, window) - 1 - first_key;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int key = i / 2 * 8 + lane / 4;
      if (key <= low[i % 2] || key > high[i % 2]) scores[i / 4][i % 4] = __int_as_float(kMinusInfinity);
    }
  }
};

// Where the rows of a pair are among all rows of queries and results.
struct PairRows {
#if TL_NEW_TOKENS > 1
  using Seen = SeenByEach;
  using Query = SharedQuery<kDim, kOctets>;
#else
  using Seen = SeenByOne;
  using Query = KeptQuery<kDim, kOctets>;
#endif
  u64 first;  // the element with which row 0 begins
  int count;
  Section section;

  __device__ __forceinline__ PairRows(const Table& table, int pair) : section{pair % kAllSections} {
    const int item = pair / kAllSections;
    if constexpr (kCopiesNew) {
      first = (static_cast<u64>(table.first_of(item)) * TL_HEADS + section.first_head()) * kDim;
      count = table.count_of(item) * kGroup;
    } else {
      first = kIsRagged ? (static_cast<u64>(item) * TL_HEADS + section.first_head()) * kDim
                        : static_cast<u64>(pair) * kGroup * kDim;
      count = kGroup;
    }
  }
  // Whether a row is that of a head, of any token; and whether it is also that of a token of the pair.
  __device__ __forceinline__ bool is_of_head(int row) const { return row < kRows && section.has(row); }
  __device__ __forceinline__ bool is_there(int row) const { return row < count && section.has(row); }
  // Whether the pair has rows of a part (see kParts).
  __device__ __forceinline__ bool has(int part) const { return part == 0 || (kCopiesNew && part * kPartRows < count); }
  // Where row `row` begins, from row 0 on; the place of row first + row; and the number of a row's head in the group.
  __device__ __forceinline__ static int offset(int row) {
    return kCopiesNew ? (row / kGroup * TL_HEADS + row % kGroup) * kDim : row * kDim;
  }
  __device__ __forceinline__ static const u16* place(const u16* from, int first, int row) {
    return kCopiesNew ? from + offset(first + row) : from + first * kDim + row * kDim;
  }
  __device__ __forceinline__ static int head(int row) { return kCopiesNew ? row % kGroup : row; }
};

}  // namespace tl
