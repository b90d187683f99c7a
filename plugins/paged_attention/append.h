// First phase of PagedAttention. For each token: normalize and rotate its heads, leave queries in y and, unless an
// earlier layer has done so, append keys and values to the cache.
#pragma once

#include <math.h>

#include <cstdint>

#include "cache_block.h"

namespace tl::TL_ISA {

// 1 / rms(x), or 1 without a norm.
TL_INLINE float norm_factor(const float* x, const float* norm, const AttentionProblem& p) {
  if (!norm) return 1.0f;
  Vec squares = zero();
  for (std::int64_t i = 0; i < p.head_dim; i += kLanes) {
    const Vec value = load_first(x + i, p.head_dim - i);
    squares = fma(value, value, squares);
  }
  return 1.0f / sqrtf(reduce_add(squares) / static_cast<float>(p.head_dim) + p.norm_epsilon);
}

// to = rotate(norm(x)) or norm(rotate(x)), pairing element i with element i + half_dim. RoPE does not change rms(x).
inline void rotate_head(const AttentionProblem& p, std::int64_t token, const float* x, const float* norm, float* to) {
  const std::int64_t half = p.half_dim;
  const Vec factor = broadcast(norm_factor(x, norm, p));
  for (std::int64_t i = 0; i < half; i += kLanes) {
    const std::int64_t count = half - i;
    Vec low = load_first(x + i, count), high = load_first(x + half + i, count);
    const Vec of_low = norm ? factor * load_first(norm + i, count) : broadcast(1.0f);
    const Vec of_high = norm ? factor * load_first(norm + half + i, count) : broadcast(1.0f);
    if (norm && !p.norm_after_rope) {
      low = low * of_low;
      high = high * of_high;
    }
    const Vec cosine = load_first(p.cos + token * half + i, count);
    const Vec sine = load_first(p.sin + token * half + i, count);
    Vec first = low * cosine - high * sine, second = high * cosine + low * sine;
    if (norm && p.norm_after_rope) {
      first = first * of_low;
      second = second * of_high;
    }
    store_first(to + i, first, count);
    store_first(to + half + i, second, count);
  }
  for (std::int64_t i = 2 * half; i < p.head_dim; i += kLanes) {
    const std::int64_t count = p.head_dim - i;
    const Vec value = load_first(x + i, count);
    store_first(to + i, norm ? value * factor * load_first(norm + i, count) : value, count);
  }
}

// to = norm(x), or x without a norm.
inline void normalize_head(const AttentionProblem& p, const float* x, const float* norm, float* to) {
  const Vec factor = broadcast(norm_factor(x, norm, p));
  for (std::int64_t i = 0; i < p.head_dim; i += kLanes) {
    const std::int64_t count = p.head_dim - i;
    const Vec value = load_first(x + i, count);
    store_first(to + i, norm ? value * factor * load_first(norm + i, count) : value, count);
  }
}

TL_INLINE void copy(const float* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
}

inline void append_token(const AttentionProblem& p, std::int64_t seq, std::int64_t token) {
  const std::int64_t dim = p.head_dim;
  const float* queries = p.qkv + token * (p.num_heads + (p.appends ? 2 * p.num_kv_heads : 0)) * dim;
  const float* keys = queries + p.num_heads * dim;
  const float* values = keys + p.num_kv_heads * dim;
  for (std::int64_t h = 0; h < p.num_heads; ++h) {
    rotate_head(p, token, queries + h * dim, p.query_norm, p.y + (token * p.num_heads + h) * dim);
  }
  if (!p.appends) return;
  const std::int64_t position = p.past_lens[seq] + token - p.cu_seqlens[seq];
  const std::int64_t block = position / p.tokens_per_block, slot = position % p.tokens_per_block;
  for (std::int64_t h = 0; h < p.num_kv_heads; ++h) {
    alignas(64) float key[kMaxHeadDim];
    alignas(64) float value[kMaxHeadDim];
    rotate_head(p, token, keys + h * dim, p.key_norm, key);
    normalize_head(p, values + h * dim, p.value_norm, value);
    const std::int64_t first_key = p.block_offset(p.key_cache, seq, block, h);
    const std::int64_t first_value = p.block_offset(p.value_cache, seq, block, h);
    write_cache(p.key_cache, first_key + slot, p.tokens_per_block, key, dim);
    write_cache(p.value_cache, first_value + slot * dim, 1, value, dim);
    if (p.stored) {
      float* stored = p.stored + (2 * token * p.num_kv_heads + h) * dim;
      copy(key, stored, dim);
      copy(value, stored + p.num_kv_heads * dim, dim);
    }
  }
}

}  // namespace tl::TL_ISA
