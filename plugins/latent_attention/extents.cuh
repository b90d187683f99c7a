// What the kernels of latent attention share: extents, and the places of latents and keys in the caches.
//
// Caches have one head: for each token a latent of TL_LATENT_DIM elements (a multiple of 128) and a key of
// TL_ROTARY_DIM (a multiple of 64), laid out as in paged_attention/cache.cuh with the 128-byte swizzle. Macros: these,
// TL_HEADS, TL_PAGE (tokens of a block of the cache), TL_BLOCK_BYTES, TL_FP16.
#pragma once

#include "paged_attention/cache.cuh"

namespace tl {

constexpr int kHeads = TL_HEADS, kLatentDim = TL_LATENT_DIM, kRotaryDim = TL_ROTARY_DIM;
constexpr int kQueryDim = kLatentDim + kRotaryDim;  // elements of an absorbed query
using LatentLayout = CacheLayout<kLatentDim>;
using KeyLayout = CacheLayout<kRotaryDim>;
static_assert(LatentLayout::kSwizzled && KeyLayout::kSwizzled);
static_assert(kLatentDim % 128 == 0 && kLatentDim <= 512 && kRotaryDim % 64 == 0);

}  // namespace tl
