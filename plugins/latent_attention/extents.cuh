// What the kernels of latent attention share: extents, and where a token's latent and key lie in the caches.
//
// Caches have one head: of each token a latent of TL_LATENT_DIM elements and a key of TL_ROTARY_DIM, laid out as
// paged_attention/cache.cuh says, with the 128-byte swizzle. Macros: these (multiples of 128 and of 64), TL_HEADS,
// TL_PAGE (tokens of a block of the cache), TL_FP16.
#pragma once

#include "paged_attention/cache.cuh"

namespace tl {

constexpr int kHeads = TL_HEADS, kLatentDim = TL_LATENT_DIM, kRotaryDim = TL_ROTARY_DIM;
constexpr int kQueryDim = kLatentDim + kRotaryDim;  // of an absorbed query
using LatentLayout = CacheLayout<kLatentDim>;
using KeyLayout = CacheLayout<kRotaryDim>;
static_assert(LatentLayout::kSwizzled && KeyLayout::kSwizzled);
static_assert(kLatentDim % 128 == 0 && kLatentDim <= 512 && kRotaryDim % 64 == 0);

}  // namespace tl
