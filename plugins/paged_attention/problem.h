// The operands of one PagedAttention call, under the names that the kernel's parts use.
#pragma once

#include <math.h>

#include <cstdint>

#include "cpu/kernel.h"
#include "cpu/simd/simd.h"
#include "paged_attention_schema.h"

namespace tl::TL_ISA {

constexpr std::int64_t kMaxHeadDim = 512;
constexpr std::int64_t kMaxTokensPerBlock = 128;

// One of the two caches, whose blocks begin `block_stride` elements after each other, and the scale of its elements if
// their type has eight bits.
struct CacheTensor {
  void* data;
  DType dtype;
  std::int64_t block_stride;
  float scale;
};

struct AttentionProblem {
  const float *qkv, *cos, *sin, *query_norm, *key_norm, *value_norm;
  const float* sinks;  // [num_heads], or null
  const std::int32_t *cu_seqlens, *past_lens, *block_tables;
  CacheTensor key_cache, value_cache;
  float* y;
  float* stored;  // [num_tokens][2 * num_kv_heads * head_dim], or null
  std::int64_t num_tokens, num_seqs;
  std::int64_t table_stride;  // distance between the block tables of consecutive sequences
  std::int64_t num_heads, num_kv_heads, head_dim, tokens_per_block;
  std::int64_t half_dim;  // pairs of a head that are rotated; later elements stay
  std::int64_t group;     // query heads per key/value head
  std::int64_t window, chunked, floor_scale, floor_offset, first_position;
  float scale, attn_scale, softcap, norm_epsilon;
  bool norm_after_rope, appends;

  std::int64_t new_tokens(std::int64_t seq) const { return cu_seqlens[seq + 1] - cu_seqlens[seq]; }

  // The first element of a head in a sequence's block of a cache.
  std::int64_t block_offset(const CacheTensor& cache, std::int64_t seq, std::int64_t block,
                            std::int64_t kv_head) const {
    const std::int64_t physical = block_tables[seq * table_stride + block];
    return physical * cache.block_stride + kv_head * head_dim * tokens_per_block;
  }

  // The first position that the query at `position` attends to.
  std::int64_t first_visible(std::int64_t position) const {
    const std::int64_t moving = window > 0 ? position - window + 1 : 0;
    return max(min(first_position, position), chunked ? position / window * window : moving);
  }

  // The factor of the scores of the query at `position`.
  float scale_of(std::int64_t position) const {
    if (floor_scale == 0) return scale;
    return scale * (1.0f + attn_scale * log1pf(static_cast<float>((position + floor_offset) / floor_scale)));
  }
};

inline CacheTensor cache_tensor(const Tensor& cache, double scale) {
  return {cache.data, cache.dtype, cache.block_bytes / item_size(cache.dtype), static_cast<float>(scale)};
}

inline AttentionProblem make_problem(const KernelArgs& args) {
  const auto in = [&](int index) -> const Tensor& { return args.inputs[index]; };
  const auto attributes = paged_attention::attributes_of(args);
  const Tensor& key_cache = in(paged_attention::kKeyCache);
  const std::int64_t num_kv_heads = key_cache.shape[1];
  const Tensor& tables = in(paged_attention::kBlockTables);
  const std::int64_t num_seqs = in(paged_attention::kPastLens).shape[0];
  return {
      .qkv = in(paged_attention::kQkv).as<const float>(),
      .cos = in(paged_attention::kCos).as<const float>(),
      .sin = in(paged_attention::kSin).as<const float>(),
      .query_norm = in(paged_attention::kQueryNorm).as<const float>(),
      .key_norm = in(paged_attention::kKeyNorm).as<const float>(),
      .value_norm = in(paged_attention::kValueNorm).as<const float>(),
      .sinks = in(paged_attention::kSinks).as<const float>(),
      .cu_seqlens = in(paged_attention::kCuSeqlens).as<const std::int32_t>(),
      .past_lens = in(paged_attention::kPastLens).as<const std::int32_t>(),
      .block_tables = tables.as<const std::int32_t>() + attributes.cache_group * tables.shape[1],
      .key_cache = cache_tensor(args.outputs[paged_attention::kKeyCacheOut], attributes.key_scale),
      .value_cache = cache_tensor(args.outputs[paged_attention::kValueCacheOut], attributes.value_scale),
      .y = args.outputs[paged_attention::kY].as<float>(),
      .stored = args.outputs[paged_attention::kStored].as<float>(),
      .num_tokens = in(paged_attention::kQkv).shape[0],
      .num_seqs = num_seqs,
      .table_stride = tables.shape[0] / num_seqs * tables.shape[1],
      .num_heads = attributes.num_heads,
      .num_kv_heads = num_kv_heads,
      .head_dim = key_cache.shape[2],
      .tokens_per_block = key_cache.shape[3],
      .half_dim = in(paged_attention::kCos).data ? in(paged_attention::kCos).shape[1] : 0,
      .group = attributes.num_heads / num_kv_heads,
      .window = attributes.window,
      .chunked = attributes.window > 0 ? attributes.chunked : 0,
      .floor_scale = attributes.floor_scale,
      .floor_offset = attributes.floor_offset,
      .first_position = attributes.first_position,
      .scale = static_cast<float>(attributes.scale),
      .attn_scale = static_cast<float>(attributes.attn_scale),
      .softcap = static_cast<float>(attributes.softcap),
      .norm_epsilon = static_cast<float>(attributes.norm_epsilon),
      .norm_after_rope = attributes.norm_after_rope != 0,
      .appends = attributes.appends != 0,
  };
}

}  // namespace tl::TL_ISA
