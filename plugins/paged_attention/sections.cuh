// The query heads that share a KV head are cut into sections of up to 16, or 8 if heads are wide, which attend for
// themselves, so that their rows fit in tiles. All sections of a KV head read the same keys.
//
// Macros: TL_HEADS, TL_KV_HEADS, TL_HEAD_DIM.
#pragma once

#include "cuda/types.cuh"

namespace tl {

constexpr int kSharing = TL_HEADS / TL_KV_HEADS, kSections = ceil_div(kSharing, TL_HEAD_DIM <= 256 ? 16 : 8);
constexpr int kGroup = ceil_div(kSharing, kSections);  // heads of a section, but for the last of a KV head
constexpr int kAllSections = TL_KV_HEADS * kSections;
constexpr bool kIsRagged = kGroup * kSections != kSharing;  // whether the last section of a KV head has fewer heads

// A section, by its number among those of all KV heads. A token's rows are those of its heads; row r of several tokens
// is that of token r / kGroup.
struct Section {
  int number;

  __device__ __forceinline__ int kv_head() const { return number / kSections; }
  __device__ __forceinline__ int first_head() const {
    return kIsRagged ? kv_head() * kSharing + number % kSections * kGroup : number * kGroup;
  }
  __device__ __forceinline__ int heads() const {
    return kIsRagged ? min_of(kGroup, kSharing - number % kSections * kGroup) : kGroup;
  }
  // Whether a row is that of a head.
  __device__ __forceinline__ bool has(int row) const { return !kIsRagged || row % kGroup < heads(); }
  // The head of a row among all query heads; the last one for rows past it.
  __device__ __forceinline__ int head(int row) const {
    return first_head() + (kIsRagged ? min_of(row % kGroup, heads() - 1) : row % kGroup);
  }
};

}  // namespace tl
