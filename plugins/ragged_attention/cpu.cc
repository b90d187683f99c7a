// RaggedAttention on a CPU. A task is one head of a tile of a sequence's queries. It goes through the keys that they
// see in chunks, counted from the sequence's start, with online softmax (arXiv 1805.02867).
#include "cpu/kernel.h"
#include "cpu/simd/simd.h"
#include "host/thread_pool.h"
#include "ragged_attention_schema.h"

namespace tl::TL_ISA {
namespace {

constexpr std::int64_t kMaxHeadDim = 256;  // the schema's limit
constexpr std::int64_t kTileQueries = 64;
constexpr std::int64_t kChunkKeys = 64;
constexpr std::int64_t kChunkVectors = kChunkKeys / kLanes;
// Accumulators that fit in registers: scores of a few queries with a chunk's keys, or elements of their results.
constexpr std::int64_t kSums = 16;
constexpr std::int64_t kQueries = kChunkVectors < kSums ? kSums / kChunkVectors : 1;
constexpr std::int64_t kMostElements = kSums / kQueries;  // vectors of elements
static_assert(kChunkKeys % kLanes == 0 && kTileQueries % kQueries == 0 && kMaxHeadDim % (kMostElements * kLanes) == 0);

struct RaggedProblem {
  const float *qkv, *cos, *sin, *distance_bias;
  const std::int32_t* cu_seqlens;
  float* y;
  std::int64_t num_seqs, num_heads, head_dim;
  std::int64_t half_dim;       // pairs of a head that are rotated
  std::int64_t most_distance;  // the largest distance that the bias distinguishes
  std::int64_t window;
  float scale;

  std::int64_t length(std::int64_t seq) const { return cu_seqlens[seq + 1] - cu_seqlens[seq]; }
  // Elements of a head in scratch memory, padded with zeros.
  std::int64_t padded_dim() const { return ceil_div(head_dim, kMostElements * kLanes) * kMostElements * kLanes; }
  std::int64_t num_tiles(std::int64_t seq) const { return ceil_div(length(seq), kTileQueries) * num_heads; }
  // A head of a row. Part 0 is queries, 1 keys, 2 values.
  const float* head_of(std::int64_t row, std::int64_t part, std::int64_t head) const {
    return qkv + ((row * 3 + part) * num_heads + head) * head_dim;
  }
};

// Queries first .. first + count - 1 of a sequence, whose first row is `row`.
struct Tile {
  std::int64_t row, length, head, first, count;
};

// Keys first .. end - 1 of a sequence or a chunk.
struct Keys {
  std::int64_t first, end;
};

// One thread's scratch memory. For each query of a tile, `sums` are values summed with the weights
// exp(score - maximum), and `totals` are the sums of these weights.
struct RaggedScratch {
  alignas(64) float keys[kMaxHeadDim * kChunkKeys];    // keys of a chunk, transposed: element by element
  alignas(64) float values[kChunkKeys * kMaxHeadDim];  // rows of kMaxHeadDim elements, like the next two
  alignas(64) float queries[kTileQueries * kMaxHeadDim];
  alignas(64) float sums[kTileQueries * kMaxHeadDim];
  alignas(64) float weights[kQueries * kChunkKeys];
  float bias[kTileQueries + kChunkKeys];  // bias for a chunk's keys, starting with the distance from the last query to
                                          // the first key
  float maxima[kTileQueries], totals[kTileQueries];
};
static_assert(sizeof(RaggedScratch) <= kScratchBytesPerThread);

// Consecutive tiles belong to the same head, so that its keys and values stay in the cache.
Tile find_tile(const RaggedProblem& p, std::int64_t index) {
  std::int64_t seq = 0;
  for (; index >= p.num_tiles(seq); ++seq) index -= p.num_tiles(seq);
  const std::int64_t tiles = ceil_div(p.length(seq), kTileQueries), first = index % tiles * kTileQueries;
  return {p.cu_seqlens[seq], p.length(seq), index / tiles, first, min(kTileQueries, p.length(seq) - first)};
}

// to = a head of a row, rotated: element i with element i + half_dim.
void load_rotated(const RaggedProblem& p, std::int64_t row, std::int64_t part, std::int64_t head, float* to) {
  const float* x = p.head_of(row, part, head);
  const std::int64_t half = p.half_dim;
  for (std::int64_t i = 0; i < half; i += kLanes) {
    const std::int64_t count = half - i;
    const Vec low = load_first(x + i, count), high = load_first(x + half + i, count);
    const Vec cosine = load_first(p.cos + row * half + i, count), sine = load_first(p.sin + row * half + i, count);
    store_first(to + i, low * cosine - high * sine, count);
    store_first(to + half + i, high * cosine + low * sine, count);
  }
  for (std::int64_t i = 2 * half; i < p.head_dim; i += kLanes) {
    store_first(to + i, load_first(x + i, p.head_dim - i), p.head_dim - i);
  }
}

// Missing queries, up to a whole number of kQueries, are zeros, and so are their sums.
void begin_tile(const RaggedProblem& p, const Tile& tile, RaggedScratch* scratch) {
  for (std::int64_t query = 0; query < ceil_div(tile.count, kQueries) * kQueries; ++query) {
    scratch->maxima[query] = -__builtin_inff();
    scratch->totals[query] = 0;
    float* own = scratch->queries + query * kMaxHeadDim;
    for (std::int64_t d = 0; d < p.padded_dim(); d += kLanes) {
      store(scratch->sums + query * kMaxHeadDim + d, zero());
      store(own + d, zero());
    }
    if (query < tile.count) load_rotated(p, tile.row + tile.first + query, 0, tile.head, own);
  }
}

// The keys of a sequence that at least one of queries first .. last sees.
Keys seen_keys(const RaggedProblem& p, const Tile& tile, std::int64_t first, std::int64_t last) {
  if (p.window == 0) return {0, tile.length};
  return {max(first - p.window, 0), min(last + p.window + 1, tile.length)};
}

// Loads keys and values of a chunk, with zeros for missing ones.
void load_chunk(const RaggedProblem& p, const Tile& tile, std::int64_t chunk, std::int64_t count,
                RaggedScratch* scratch) {
  float key[kMaxHeadDim];
  for (std::int64_t k = 0; k < kChunkKeys; ++k) {
    const std::int64_t row = tile.row + chunk + k;
    if (k < count) load_rotated(p, row, 1, tile.head, key);
    for (std::int64_t d = 0; d < p.head_dim; ++d) scratch->keys[d * kChunkKeys + k] = k < count ? key[d] : 0.0f;
    for (std::int64_t d = 0; d < p.padded_dim(); d += kLanes) {
      const std::int64_t left = k < count ? max(min(p.head_dim - d, kLanes), 0) : 0;
      const Vec value = left > 0 ? load_first(p.head_of(row, 2, tile.head) + d, left) : zero();
      store(scratch->values + k * kMaxHeadDim + d, value);
    }
  }
}

void spread_bias(const RaggedProblem& p, const Tile& tile, std::int64_t chunk, RaggedScratch* scratch) {
  const float* bias = p.distance_bias + tile.head * (2 * p.most_distance + 1) + p.most_distance;
  const std::int64_t least = chunk - (tile.first + kTileQueries - 1);
  for (std::int64_t i = 0; i < kTileQueries + kChunkKeys - 1; ++i) {
    scratch->bias[i] = bias[max(min(least + i, p.most_distance), -p.most_distance)];
  }
}

// Writes products of kQueries queries from `query` on with a chunk's keys to scratch->weights.
void multiply_keys(const RaggedProblem& p, std::int64_t query, RaggedScratch* scratch) {
  const float* queries = scratch->queries + query * kMaxHeadDim;
  Vec scores[kQueries][kChunkVectors];
  for (auto& row : scores) {
    for (Vec& one : row) one = zero();
  }
  for (std::int64_t d = 0; d < p.head_dim; ++d) {
    const float* keys = scratch->keys + d * kChunkKeys;
    for (int q = 0; q < kQueries; ++q) {
      const Vec element = broadcast(queries[q * kMaxHeadDim + d]);
      for (int v = 0; v < kChunkVectors; ++v) scores[q][v] = fma(element, load(keys + v * kLanes), scores[q][v]);
    }
  }
  for (int q = 0; q < kQueries; ++q) {
    for (int v = 0; v < kChunkVectors; ++v) store(scratch->weights + q * kChunkKeys + v * kLanes, scores[q][v]);
  }
}

// Converts products to scores; those of keys that are not `seen` become -inf. Returns the largest. `bias`: the bias of
// the chunk's first key, or null.
float score(const RaggedProblem& p, const float* bias, Keys seen, float* scores) {
  const Vec scale = broadcast(p.scale), absent = broadcast(-__builtin_inff());
  Vec largest = absent;
  for (int v = 0; v < kChunkVectors; ++v) {
    const std::int64_t first = max(min(seen.first - v * kLanes, kLanes), 0);
    const std::int64_t end = max(min(seen.end - v * kLanes, kLanes), 0);
    Vec found = load(scores + v * kLanes) * scale;
    if (bias) found = found + load(bias + v * kLanes);
    found = keep_lanes(found, first, end, absent);
    largest = max(largest, found);
    store(scores + v * kLanes, found);
  }
  return reduce_max(largest);
}

// Converts the scores of one query to weights; `found` is the largest score. Scales the earlier sums to match.
void weigh(const RaggedProblem& p, std::int64_t query, float found, float* weights, RaggedScratch* scratch) {
  const float before = scratch->maxima[query], maximum = found > before ? found : before;
  float correction[kLanes];
  store(correction, exp(broadcast(before - maximum)));
  Vec total = zero();
  for (std::int64_t k = 0; k < kChunkKeys; k += kLanes) {
    const Vec weight = exp(load(weights + k) - broadcast(maximum));
    store(weights + k, weight);
    total = total + weight;
  }
  scratch->maxima[query] = maximum;
  scratch->totals[query] = scratch->totals[query] * correction[0] + reduce_add(total);
  float* sums = scratch->sums + query * kMaxHeadDim;
  for (std::int64_t d = 0; d < p.head_dim; d += kLanes) store(sums + d, load(sums + d) * broadcast(correction[0]));
}

// Adds a chunk's weighted values to the sums of kQueries queries from `query` on.
template <std::int64_t kElements>
void add_values(const RaggedProblem& p, std::int64_t query, Keys seen, RaggedScratch* scratch) {
  for (std::int64_t d = 0; d < p.head_dim; d += kElements * kLanes) {
    float* sums = scratch->sums + query * kMaxHeadDim + d;
    Vec sum[kQueries][kElements];
    for (int q = 0; q < kQueries; ++q) {
      for (int e = 0; e < kElements; ++e) sum[q][e] = load(sums + q * kMaxHeadDim + e * kLanes);
    }
    for (std::int64_t k = seen.first; k < seen.end; ++k) {
      const float* value = scratch->values + k * kMaxHeadDim + d;
      for (int q = 0; q < kQueries; ++q) {
        const Vec weight = broadcast(scratch->weights[q * kChunkKeys + k]);
        for (int e = 0; e < kElements; ++e) sum[q][e] = fma(weight, load(value + e * kLanes), sum[q][e]);
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      for (int e = 0; e < kElements; ++e) store(sums + q * kMaxHeadDim + e * kLanes, sum[q][e]);
    }
  }
}

// The keys of a chunk that at least one of queries first .. last of a tile sees.
Keys seen_of_chunk(const RaggedProblem& p, const Tile& tile, std::int64_t first, std::int64_t last,
                   std::int64_t chunk) {
  const Keys seen = seen_keys(p, tile, tile.first + first, tile.first + last);
  return {max(seen.first - chunk, 0), min(seen.end - chunk, kChunkKeys)};
}

void attend_chunk(const RaggedProblem& p, const Tile& tile, std::int64_t first, std::int64_t chunk,
                  RaggedScratch* scratch) {
  const Keys all = seen_of_chunk(p, tile, first, first + kQueries - 1, chunk);
  if (all.first >= all.end) return;
  multiply_keys(p, first, scratch);
  for (std::int64_t query = first; query < first + kQueries; ++query) {
    float* weights = scratch->weights + (query - first) * kChunkKeys;
    const Keys seen = seen_of_chunk(p, tile, query, query, chunk);
    if (seen.first >= seen.end) {
      for (std::int64_t k = 0; k < kChunkKeys; k += kLanes) store(weights + k, zero());
      continue;
    }
    const float* bias = p.distance_bias ? scratch->bias + kTileQueries - 1 - query : nullptr;
    weigh(p, query, score(p, bias, seen, weights), weights, scratch);
  }
  if (p.head_dim > kMostElements / 2 * kLanes) {
    add_values<kMostElements>(p, first, all, scratch);
  } else {
    add_values<kMostElements / 2>(p, first, all, scratch);
  }
}

void attend(const RaggedProblem& p, const Tile& tile, RaggedScratch* scratch) {
  const Keys seen = seen_keys(p, tile, tile.first, tile.first + tile.count - 1);
  for (std::int64_t chunk = seen.first / kChunkKeys * kChunkKeys; chunk < seen.end; chunk += kChunkKeys) {
    load_chunk(p, tile, chunk, min(kChunkKeys, tile.length - chunk), scratch);
    if (p.distance_bias) spread_bias(p, tile, chunk, scratch);
    for (std::int64_t query = 0; query < tile.count; query += kQueries) attend_chunk(p, tile, query, chunk, scratch);
  }
}

void write_y(const RaggedProblem& p, const Tile& tile, const RaggedScratch& scratch) {
  for (std::int64_t query = 0; query < tile.count; ++query) {
    float* y = p.y + ((tile.row + tile.first + query) * p.num_heads + tile.head) * p.head_dim;
    const Vec total = broadcast(scratch.totals[query]);
    for (std::int64_t d = 0; d < p.head_dim; d += kLanes) {
      store_first(y + d, load(scratch.sums + query * kMaxHeadDim + d) / total, p.head_dim - d);
    }
  }
}

}  // namespace

void ragged_attention(const KernelArgs& args) {
  const Tensor& cos = args.inputs[ragged_attention::kCos];
  const Tensor& cu_seqlens = args.inputs[ragged_attention::kCuSeqlens];
  const Tensor& bias = args.inputs[ragged_attention::kDistanceBias];
  const auto attributes = ragged_attention::attributes_of(args);
  const RaggedProblem p{.qkv = args.inputs[ragged_attention::kQkv].as<const float>(),
                        .cos = cos.as<const float>(),
                        .sin = args.inputs[ragged_attention::kSin].as<const float>(),
                        .distance_bias = bias.as<const float>(),
                        .cu_seqlens = cu_seqlens.as<const std::int32_t>(),
                        .y = args.outputs[ragged_attention::kY].as<float>(),
                        .num_seqs = cu_seqlens.shape[0] - 1,
                        .num_heads = attributes.num_heads,
                        .head_dim = attributes.head_dim,
                        .half_dim = cos.data ? cos.shape[1] : 0,
                        .most_distance = bias.data ? bias.shape[1] / 2 : 0,
                        .window = attributes.window,
                        .scale = static_cast<float>(attributes.scale)};
  std::int64_t num_tiles = 0;
  for (std::int64_t seq = 0; seq < p.num_seqs; ++seq) num_tiles += p.num_tiles(seq);
  args.pool->parallel_for(num_tiles, [&](std::int64_t task, int thread) {
    const Tile tile = find_tile(p, task);
    auto* scratch = static_cast<RaggedScratch*>(args.pool->scratch(thread));
    begin_tile(p, tile, scratch);
    attend(p, tile, scratch);
    write_y(p, tile, *scratch);
  });
}

}  // namespace tl::TL_ISA
