// Second phase of PagedAttention: a tile of query rows of one key/value head over a split of the sequence.
//
// Within a split, online softmax (arXiv 1805.02867) goes step by step; then splits are merged in order (as in
// Flash-Decoding). Steps and splits start at absolute positions, and a row's arithmetic uses only positions up to its
// own, so its bits depend neither on how a prompt is cut into steps nor on the rest of the batch. Values are read up
// to the token of the tile's last row, so that the masked values, which enter a row's sums with weight zero, are those
// of tokens. Slots not yet written are not read as values, and their scores are discarded before any arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cache_block.h"
#include "cpu/products/micro_kernel.h"
#include "host/thread_pool.h"

namespace tl::TL_ISA {

constexpr std::int64_t kMaxTileQueries = 48;
constexpr std::int64_t kWideHeadDim = 256;  // heads with more elements have tiles of fewer queries
// The most tokens of one step of the online softmax; a step is whole blocks. Many tokens share the cost of a step.
constexpr std::int64_t kStepTokens = 128;
static_assert(kMaxTokensPerBlock <= kStepTokens);
constexpr std::int64_t kSplitSteps = 4;

// Rows are (token, query head of the group) pairs, tokens outermost.
struct QueryTile {
  std::int64_t seq;
  std::int64_t kv_head;
  std::int64_t first_row;
  std::int64_t rows;
};

// Softmax state of a tile's rows: weights are e^(score - max), sums[row] = weights . values.
struct SoftmaxState {
  float* maxima;
  float* totals;
  float* sums;  // [rows][sums_stride]
};

constexpr std::int64_t kMaxTileFloats = kMaxTileQueries * kWideHeadDim;
static_assert(kMaxTileFloats % kMaxHeadDim == 0);

// The most queries of a tile.
TL_INLINE std::int64_t tile_queries(const AttentionProblem& p) {
  return p.head_dim > kWideHeadDim ? kMaxTileFloats / kMaxHeadDim : kMaxTileQueries;
}

// One task's memory in the thread's scratch.
struct AttentionScratch {
  alignas(64) float queries[kMaxTileFloats];
  alignas(64) float scores[kMaxTileQueries * kStepTokens];
  alignas(64) float split_sums[kMaxTileFloats];
  alignas(64) float merged_sums[kMaxTileFloats];
  alignas(64) float split_maxima[kMaxTileQueries], split_totals[kMaxTileQueries];
  alignas(64) float merged_maxima[kMaxTileQueries], merged_totals[kMaxTileQueries];
  alignas(64) float block[kMaxTokensPerBlock * kMaxHeadDim];  // for a cache of 16- or 8-bit elements

  SoftmaxState split() { return {split_maxima, split_totals, split_sums}; }
  SoftmaxState merged() { return {merged_maxima, merged_totals, merged_sums}; }
};
static_assert(sizeof(AttentionScratch) <= kScratchBytesPerThread);

// The bytes of AttentionScratch that a problem needs: those up to the end of a block of its cache.
TL_INLINE std::int64_t scratch_bytes(const AttentionProblem& p) {
  constexpr std::int64_t kAlignment = alignof(AttentionScratch);
  const std::int64_t block = p.tokens_per_block * p.head_dim * static_cast<std::int64_t>(sizeof(float));
  return offsetof(AttentionScratch, block) + ceil_div(block, kAlignment) * kAlignment;
}

constexpr float kMinusInfinity = -__builtin_inff();

// Rows of state are padded to whole vectors of the widest instruction set.
TL_INLINE std::int64_t sums_stride(const AttentionProblem& p) { return ceil_div(p.head_dim, 16) * 16; }

TL_INLINE std::int64_t blocks_per_step(const AttentionProblem& p) { return kStepTokens / p.tokens_per_block; }
TL_INLINE std::int64_t blocks_per_split(const AttentionProblem& p) { return kSplitSteps * blocks_per_step(p); }

TL_INLINE std::int64_t position_of(const AttentionProblem& p, const QueryTile& tile, std::int64_t row) {
  return p.past_lens[tile.seq] + (tile.first_row + row) / p.group;
}

TL_INLINE float* y_of(const AttentionProblem& p, const QueryTile& tile, std::int64_t row) {
  const std::int64_t at = tile.first_row + row;
  const std::int64_t token = p.cu_seqlens[tile.seq] + at / p.group;
  return p.y + (token * p.num_heads + tile.kv_head * p.group + at % p.group) * p.head_dim;
}

// e^(x - reference); a reference of -inf means an empty sum.
TL_INLINE float exp_difference(float x, float reference) {
  return reduce_max(exp(broadcast(x - (reference == kMinusInfinity ? 0.0f : reference))));
}

inline void reset(const AttentionProblem& p, std::int64_t rows, const SoftmaxState& state) {
  for (std::int64_t r = 0; r < rows; ++r) {
    state.maxima[r] = kMinusInfinity;
    state.totals[r] = 0.0f;
  }
  for (std::int64_t i = 0; i < rows * sums_stride(p); i += kLanes) store(state.sums + i, zero());
}

// The state of a tile that has seen no token. Sinks, if there are any, are included; their values are zero.
inline void begin(const AttentionProblem& p, const QueryTile& tile, const SoftmaxState& state) {
  reset(p, tile.rows, state);
  for (std::int64_t r = 0; p.sinks && r < tile.rows; ++r) {
    state.maxima[r] = p.sinks[tile.kv_head * p.group + (tile.first_row + r) % p.group];
    state.totals[r] = 1.0f;
  }
}

// append_token has left rotated queries in y.
inline void load_queries(const AttentionProblem& p, const QueryTile& tile, float* queries) {
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const Vec scale = broadcast(p.scale_of(position_of(p, tile, r)));
    const float* query = y_of(p, tile, r);
    for (std::int64_t d = 0; d < p.head_dim; d += kLanes) {
      const std::int64_t count = p.head_dim - d;
      store_first(queries + r * p.head_dim + d, load_first(query + d, count) * scale, count);
    }
  }
}

// Converts one row's scores of a step to weights, which are zero outside columns first .. last-1, and rescales the
// state.
TL_INLINE void update_row(float* scores, std::int64_t columns, std::int64_t first, std::int64_t last, float* maximum,
                          float* total, float* sums, std::int64_t sums_size) {
  const Vec empty = broadcast(kMinusInfinity);
  Vec highest = empty;
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    Vec score = load(scores + c);
    if (c < first || c + kLanes > last) {
      score = keep_lanes(score, first - c, last - c, empty);
      store(scores + c, score);
    }
    highest = max(highest, score);
  }
  const float new_maximum = reduce_max(max(highest, broadcast(*maximum)));
  const Vec reference = broadcast(new_maximum == kMinusInfinity ? 0.0f : new_maximum);
  Vec weights = zero();
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    const Vec weight = exp(load(scores + c) - reference);
    store(scores + c, weight);
    weights = weights + weight;
  }
  const float factor = exp_difference(*maximum, new_maximum);
  *total = *total * factor + reduce_add(weights);
  *maximum = new_maximum;
  if (factor == 1.0f) return;
  for (std::int64_t d = 0; d < sums_size; d += kLanes) store(sums + d, load(sums + d) * broadcast(factor));
}

// Replaces scores s, already scaled, by cap * tanh(s / cap).
TL_INLINE void cap_scores(float* scores, std::int64_t columns, float cap) {
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    store(scores + c, broadcast(cap) * tanh(load(scores + c) / broadcast(cap)));
  }
}

// A block of keys or values that a step reads; `cache` is null where there is no such block.
struct CacheBlock {
  const CacheTensor* cache;
  std::int64_t first;  // index of its first element
};

TL_INLINE void prefetch_block(const AttentionProblem& p, const CacheBlock& block) {
  if (!block.cache) return;
  const std::int64_t item = item_size(block.cache->dtype), bytes = p.tokens_per_block * p.head_dim * item;
  const char* start = static_cast<const char*>(block.cache->data) + block.first * item;
  for (std::int64_t i = 0; i < bytes; i += kLineBytes) __builtin_prefetch(start + i);
}

// Attends to blocks first .. last-1 in one step. The sequence continues up to block end-1.
inline void attend_step(const AttentionProblem& p, const QueryTile& tile, std::int64_t first, std::int64_t last,
                        std::int64_t end, AttentionScratch* scratch, const SoftmaxState& state) {
  const float* queries = scratch->queries;
  float* scores = scratch->scores;
  const std::int64_t count = last - first, width = p.tokens_per_block, stride = sums_stride(p);
  // What the step reads, in order: keys of its blocks, values of its blocks, then keys of the next step.
  const auto block_at = [&](std::int64_t index) -> CacheBlock {
    const bool is_value = index >= count && index < 2 * count;
    const std::int64_t block = first + (index < count ? index : index - count);
    if (block >= end) return {nullptr, 0};
    const CacheTensor& cache = is_value ? p.value_cache : p.key_cache;
    return {&cache, p.block_offset(cache, tile.seq, block, tile.kv_head)};
  };
  const auto read = [&](const CacheBlock& block) {
    return read_cache(*block.cache, block.first, width * p.head_dim, scratch->block);
  };
  const std::int64_t start = first * width, tokens = min(last * width, position_of(p, tile, tile.rows - 1) + 1) - start;
  const std::int64_t columns = ceil_div(tokens, kLanes) * kLanes;
  for (std::int64_t i = 0; i < tile.rows * columns; i += kLanes) store(scores + i, zero());
  for (std::int64_t i = 0; i < count; ++i) {
    prefetch_block(p, block_at(i + 1));
    multiply<0>(Product<float>{queries, p.head_dim, read(block_at(i)), width, scores + i * width, columns, tile.rows,
                               p.head_dim, min(width, columns - i * width)});
  }
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const std::int64_t position = position_of(p, tile, r);
    if (p.softcap > 0.0f) cap_scores(scores + r * columns, columns, p.softcap);
    update_row(scores + r * columns, columns, p.first_visible(position) - start, position + 1 - start, state.maxima + r,
               state.totals + r, state.sums + r * stride, stride);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    prefetch_block(p, block_at(count + i + 1));
    multiply<0>(Product<float>{scores + i * width, columns, read(block_at(count + i)), p.head_dim, state.sums, stride,
                               tile.rows, min(width, tokens - i * width), p.head_dim});
  }
}

// Computes the state of `tile` over one split.
inline void attend_split(const AttentionProblem& p, const QueryTile& tile, std::int64_t split,
                         AttentionScratch* scratch, const SoftmaxState& state) {
  reset(p, tile.rows, state);
  const std::int64_t visible = p.first_visible(position_of(p, tile, 0)) / p.tokens_per_block;
  const std::int64_t end =
      min(position_of(p, tile, tile.rows - 1) / p.tokens_per_block + 1, (split + 1) * blocks_per_split(p));
  const std::int64_t step = blocks_per_step(p);
  for (std::int64_t begin = split * blocks_per_split(p); begin < end; begin += step) {
    const std::int64_t first = max(begin, visible), last = min(begin + step, end);
    if (first < last) attend_step(p, tile, first, last, end, scratch, state);
  }
}

// Merges the state `split` into `into`, the state of the tokens before that split.
inline void merge(const AttentionProblem& p, std::int64_t rows, const SoftmaxState& split, const SoftmaxState& into) {
  const std::int64_t stride = sums_stride(p);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float maximum = into.maxima[r] > split.maxima[r] ? into.maxima[r] : split.maxima[r];
    const float old_factor = exp_difference(into.maxima[r], maximum);
    const float new_factor = exp_difference(split.maxima[r], maximum);
    into.maxima[r] = maximum;
    into.totals[r] = into.totals[r] * old_factor + split.totals[r] * new_factor;
    float* sums = into.sums + r * stride;
    for (std::int64_t d = 0; d < stride; d += kLanes) {
      const Vec added = load(split.sums + r * stride + d) * broadcast(new_factor);
      store(sums + d, fma(load(sums + d), broadcast(old_factor), added));
    }
  }
}

inline void write_y(const AttentionProblem& p, const QueryTile& tile, const SoftmaxState& state) {
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const float* sums = state.sums + r * sums_stride(p);
    const Vec total = broadcast(state.totals[r]);
    float* y = y_of(p, tile, r);
    for (std::int64_t d = 0; d < p.head_dim; d += kLanes) {
      store_first(y + d, load(sums + d) / total, p.head_dim - d);
    }
  }
}

}  // namespace tl::TL_ISA
