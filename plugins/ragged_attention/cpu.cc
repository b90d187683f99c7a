// RaggedAttention on a CPU: a task is a tile of a sequence's queries in one head, over all keys in chunks (the softmax
// that goes on from chunk to chunk: arXiv 1805.02867). Chunks are counted from the sequence's start.
#include "cpu/kernel.h"
#include "cpu/simd.h"
#include "host/thread_pool.h"
#include "ragged_attention_schema.h"

namespace tl::TL_ISA {
namespace {

constexpr std::int64_t kMaxHeadDim = 256;  // of the schema
constexpr std::int64_t kTileQueries = 32;
constexpr std::int64_t kChunkKeys = 64;
static_assert(kChunkKeys % kLanes == 0 && kMaxHeadDim % kLanes == 0);

struct Problem {
  const float* qkv;
  const std::int32_t* cu_seqlens;
  float* y;
  std::int64_t num_seqs, num_heads, head_dim;
  float scale;

  std::int64_t length(std::int64_t seq) const { return cu_seqlens[seq + 1] - cu_seqlens[seq]; }
  std::int64_t num_tiles(std::int64_t seq) const { return ceil_div(length(seq), kTileQueries) * num_heads; }
  // One head of a row; part 0 has queries, 1 keys, 2 values.
  const float* head_of(std::int64_t row, std::int64_t part, std::int64_t head) const {
    return qkv + ((row * 3 + part) * num_heads + head) * head_dim;
  }
};

// Queries first .. first + count - 1 of a sequence, whose first row is `row`.
struct Tile {
  std::int64_t row, length, head, first, count;
};

// One thread's. Sums of values weighted by exp(score - maximum), and of these weights, are of each query of a tile.
struct Scratch {
  alignas(64) float keys[kMaxHeadDim * kChunkKeys];  // those of a chunk, an element of all keys after the other
  alignas(64) float sums[kTileQueries * kMaxHeadDim];
  alignas(64) float weights[kChunkKeys];
  float maxima[kTileQueries], totals[kTileQueries];
};
static_assert(sizeof(Scratch) <= kScratchBytesPerThread);

Tile find_tile(const Problem& p, std::int64_t index) {
  std::int64_t seq = 0;
  for (; index >= p.num_tiles(seq); ++seq) index -= p.num_tiles(seq);
  const std::int64_t first = index / p.num_heads * kTileQueries;
  return {p.cu_seqlens[seq], p.length(seq), index % p.num_heads, first, min(kTileQueries, p.length(seq) - first)};
}

void reset(std::int64_t count, Scratch* scratch) {
  for (std::int64_t query = 0; query < count; ++query) {
    scratch->maxima[query] = -__builtin_inff();
    scratch->totals[query] = 0;
    for (std::int64_t d = 0; d < kMaxHeadDim; d += kLanes) store(scratch->sums + query * kMaxHeadDim + d, zero());
  }
}

void transpose_keys(const Problem& p, const Tile& tile, std::int64_t chunk, std::int64_t count, Scratch* scratch) {
  for (std::int64_t k = 0; k < kChunkKeys; ++k) {
    const float* key = k < count ? p.head_of(tile.row + chunk + k, 1, tile.head) : nullptr;
    for (std::int64_t d = 0; d < p.head_dim; ++d) scratch->keys[d * kChunkKeys + k] = key ? key[d] : 0.0f;
  }
}

// Scores of one query and a chunk go to scratch->weights; those of keys that are not there are -inf. Returns the
// largest.
float score(const Problem& p, const float* query, std::int64_t count, Scratch* scratch) {
  constexpr int kVectors = kChunkKeys / kLanes;
  Vec scores[kVectors];
  for (Vec& one : scores) one = zero();
  for (std::int64_t d = 0; d < p.head_dim; ++d) {
    const Vec element = broadcast(query[d]);
    const float* keys = scratch->keys + d * kChunkKeys;
    for (int v = 0; v < kVectors; ++v) scores[v] = fma(element, load(keys + v * kLanes), scores[v]);
  }
  const Vec scale = broadcast(p.scale), absent = broadcast(-__builtin_inff());
  Vec largest = absent;
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t last = max(min(count - v * kLanes, kLanes), 0);
    scores[v] = keep_lanes(scores[v] * scale, 0, last, absent);
    largest = max(largest, scores[v]);
    store(scratch->weights + v * kLanes, scores[v]);
  }
  return reduce_max(largest);
}

void attend_chunk(const Problem& p, const Tile& tile, std::int64_t query, std::int64_t chunk, std::int64_t count,
                  Scratch* scratch) {
  const float found = score(p, p.head_of(tile.row + tile.first + query, 0, tile.head), count, scratch);
  const float before = scratch->maxima[query], maximum = found > before ? found : before;
  float correction[kLanes];
  store(correction, exp(broadcast(before - maximum)));
  Vec total = zero();
  for (std::int64_t k = 0; k < kChunkKeys; k += kLanes) {
    const Vec weight = exp(load(scratch->weights + k) - broadcast(maximum));
    store(scratch->weights + k, weight);
    total = total + weight;
  }
  scratch->maxima[query] = maximum;
  scratch->totals[query] = scratch->totals[query] * correction[0] + reduce_add(total);
  float* sums = scratch->sums + query * kMaxHeadDim;
  for (std::int64_t d = 0; d < p.head_dim; d += kLanes) {
    Vec sum = load(sums + d) * broadcast(correction[0]);
    for (std::int64_t k = 0; k < count; ++k) {
      const float* value = p.head_of(tile.row + chunk + k, 2, tile.head);
      sum = fma(broadcast(scratch->weights[k]), load_first(value + d, p.head_dim - d), sum);
    }
    store(sums + d, sum);
  }
}

void write_y(const Problem& p, const Tile& tile, const Scratch& scratch) {
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
  const Tensor& cu_seqlens = args.inputs[ragged_attention::kCuSeqlens];
  const auto attributes = ragged_attention::attributes_of(args);
  const Problem p{args.inputs[ragged_attention::kQkv].as<const float>(),
                  cu_seqlens.as<const std::int32_t>(),
                  args.outputs[ragged_attention::kY].as<float>(),
                  cu_seqlens.shape[0] - 1,
                  attributes.num_heads,
                  attributes.head_dim,
                  static_cast<float>(attributes.scale)};
  std::int64_t num_tiles = 0;
  for (std::int64_t seq = 0; seq < p.num_seqs; ++seq) num_tiles += p.num_tiles(seq);
  args.pool->parallel_for(num_tiles, [&](std::int64_t task, int thread) {
    const Tile tile = find_tile(p, task);
    auto* scratch = static_cast<Scratch*>(args.pool->scratch(thread));
    reset(tile.count, scratch);
    for (std::int64_t chunk = 0; chunk < tile.length; chunk += kChunkKeys) {
      const std::int64_t count = min(kChunkKeys, tile.length - chunk);
      transpose_keys(p, tile, chunk, count, scratch);
      for (std::int64_t query = 0; query < tile.count; ++query) attend_chunk(p, tile, query, chunk, count, scratch);
    }
    write_y(p, tile, *scratch);
  });
}

}  // namespace tl::TL_ISA
