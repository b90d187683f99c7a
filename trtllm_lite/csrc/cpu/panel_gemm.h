// The product of activations and a weight in panels of 64 features (plugins/README.md), for Linear and GatedLinear.
//
// Few rows: memory is the limit, each panel is streamed once and widened in registers. Many rows: arithmetic is the
// limit, all rows pass over a chunk of the panel while it is in the first-level cache. Partial sums are floats in
// memory between chunks, which changes no bit. Weights with scales are widened without them: micro_kernel.h scales the
// sums of each block.
#pragma once

#include <cstdint>

#include "cpu/kernel.h"
#include "cpu/micro_kernel.h"
#include "cpu/thread_pool.h"

namespace tl::TL_ISA {

constexpr int kPanelWidth = 64;
// Bytes of a chunk of a stored panel; the chunk and the one that follows it fit the first-level cache.
constexpr std::int64_t kChunkBytes = 16 * 1024;
constexpr std::int64_t kMaxChunkDepth = kChunkBytes / (kPanelWidth * sizeof(BFloat16));  // widened, it fits the second
template <typename Weight>
constexpr std::int64_t kChunkDepth =
    min(kMaxChunkDepth, kChunkBytes / (kPanelWidth * sizeof(Weight)) * kElements<Weight>);
// Rows of one task: their sums take 24 KiB.
constexpr std::int64_t kMaxTaskRows = 96;
// Tasks of fewer rows are not made of larger ones: reading the panel again would cost more than it gains.
constexpr std::int64_t kMinTaskRows = 24;
// From here on, widening a chunk once is cheaper than widening it for every tile of rows; elements of 4 bits are
// widened wherever a chunk is used more than once.
template <typename Weight>
constexpr std::int64_t kMinRowsToWiden = kElements<Weight> > 1 ? 1 : 32;
// How far ahead a streamed panel is prefetched; this covers the latency of memory at 40 GB/s.
constexpr std::int64_t kPrefetchBytes = 8192;
// There are so many tasks for each thread that the threads end at about the same time.
constexpr std::int64_t kTasksPerThread = 8;

// One task's memory in the thread's scratch.
struct PanelScratch {
  alignas(64) float widened[kMaxChunkDepth * kPanelWidth];
  alignas(64) float sums[kMaxTaskRows * kPanelWidth];
  alignas(64) float partial[kMaxTaskRows * kPanelWidth];
};
static_assert(sizeof(PanelScratch) <= kScratchBytesPerThread);
// The shared scratch holds sums of x over blocks.
constexpr std::int64_t kMaxXSums = static_cast<std::int64_t>(kSharedScratchBytes / sizeof(float));
static_assert(kMaxXSums >= kMaxWeightBlocks);

// The operands of a product that make its weight; those that are absent have no data.
struct PackedWeight {
  const Tensor& weight;
  const Tensor& scale;
  const Tensor& offset;
};

template <int kIndex, typename Item>
TL_INLINE void store_elements(const Item& item, float* to) {
  store(to + kIndex * kPanelWidth, element<kIndex>(item));
}

// `depth` rows of a panel as floats.
template <typename Weight>
TL_INLINE void widen(const Weight* from, std::int64_t depth, float* to) {
  for (std::int64_t i = 0; i < depth / kElements<Weight> * kPanelWidth; i += kLanes) {
    float* column = to + i / kPanelWidth * kElements<Weight> * kPanelWidth + i % kPanelWidth;
    const auto item = load(from + i);
    store_elements<0>(item, column);
    if constexpr (kElements<Weight> == 8) {
      store_elements<1>(item, column);
      store_elements<2>(item, column);
      store_elements<3>(item, column);
      store_elements<4>(item, column);
      store_elements<5>(item, column);
      store_elements<6>(item, column);
      store_elements<7>(item, column);
    }
  }
}

template <typename Weight>
TL_INLINE Prefetch prefetch_range(const Weight* first, std::int64_t count, std::int64_t step) {
  return {reinterpret_cast<const char*>(first), reinterpret_cast<const char*>(first + count),
          step * static_cast<std::int64_t>(sizeof(Weight))};
}

// Cache lines of a row of a panel's items.
template <typename Weight>
constexpr int kPanelLines = kPanelWidth * sizeof(Weight) / kLineBytes;

// The sum of each block of `block` elements of x, in an order that depends on the block alone.
TL_INLINE void sum_blocks(const float* x, std::int64_t block, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i, x += block) {
    Vec sum = zero();
    std::int64_t k = 0;
    for (; k + kLanes <= block; k += kLanes) sum = sum + load(x + k);
    if (k < block) sum = sum + load_first(x + k, block - k);
    to[i] = reduce_add(sum);
  }
}

// Multiplies where one tile holds all rows and columns, so that the panel is read once.
template <typename Weight, typename Scales>
TL_INLINE void stream_panel(const Product<Weight, Scales>& p) {
  constexpr std::int64_t kAhead = kPrefetchBytes / sizeof(Weight);
  const std::int64_t items = p.depth / kElements<Weight> * kPanelWidth;
  multiply<kPanelWidth, kPanelLines<Weight>>(p, prefetch_range(p.w + kAhead, items, kPanelWidth));
}

// Multiplies one chunk, of which all rows of p make use, while the first level takes in the next one.
template <typename Weight, typename Scales>
TL_INLINE void multiply_chunk(const Product<Weight, Scales>& p, float* widened) {
  // Half of the lines in each of the first two passes; a row of bytes is one line, one of words has 8 rows' time.
  constexpr int kLines = kElements<Weight> == 1 && kPanelLines<Weight> > 1 ? kPanelLines<Weight> / 2 : 1;
  constexpr int kStep = kLines * kLineBytes / sizeof(Weight);
  const std::int64_t items = p.depth / kElements<Weight> * kPanelWidth;
  const Prefetch prefetch = prefetch_range(p.w + items, items, kStep);
  if constexpr (kElements<Weight> == 1) {
    if (sizeof(Weight) == sizeof(float) || p.rows < kMinRowsToWiden<Weight>)
      return multiply<kPanelWidth, kLines>(p, prefetch);
  }
  widen(p.w, p.depth, widened);
  multiply<kPanelWidth, kLines>(Product<float, Scales>{p.x, p.x_stride, widened, kPanelWidth, p.sums, p.sums_stride,
                                                       p.rows, p.depth, p.columns, p.scales},
                                prefetch);
}

template <typename Weight>
TL_INLINE void multiply_chunks(Product<Weight> p, PanelScratch* scratch) {
  for (std::int64_t left = p.depth; left > 0; left -= kChunkDepth<Weight>) {
    p.depth = min(left, kChunkDepth<Weight>);
    multiply_chunk(p, scratch->widened);
    p.x += p.depth;
    p.w += p.depth * kPanelWidth;
  }
}

// Chunks are whole blocks, or parts of one that is longer than a chunk.
template <typename Weight>
TL_INLINE void multiply_chunks(Product<Weight, Scaled> p, PanelScratch* scratch) {
  const std::int64_t depth = p.depth, block = p.scales.block;
  const bool whole = block <= kChunkDepth<Weight>;
  p.scales.partial = whole ? nullptr : scratch->partial;
  for (std::int64_t done = 0; done < depth; done += p.depth) {
    const std::int64_t in_block = done % block;
    p.depth =
        whole ? min(depth - done, kChunkDepth<Weight> / block * block) : min(block - in_block, kChunkDepth<Weight>);
    p.scales.begins = in_block == 0;
    p.scales.ends = whole || in_block + p.depth == block;
    multiply_chunk(p, scratch->widened);
    if (p.scales.ends) p.scales.skip_blocks(whole ? p.depth / block : 1);
    p.x += p.depth;
    p.w += p.depth / kElements<Weight> * kPanelWidth;
  }
}

// p.sums = p.x * p.w for one panel.
template <typename Weight, typename Scales>
void multiply_panel(const Product<Weight, Scales>& p, PanelScratch* scratch) {
  for (std::int64_t i = 0; i < p.rows * kPanelWidth; i += kLanes) store(p.sums + i, zero());
  if (p.rows <= kMaxTileRows && tile_vecs(static_cast<int>(p.rows), kMaxTileVecs) * kLanes >= kPanelWidth) {
    stream_panel(p);
  } else {
    multiply_chunks(p, scratch);
  }
}

// How a product is cut into tasks: every panel with every band of rows.
struct Bands {
  std::int64_t count;
  std::int64_t rows;
};

TL_INLINE Bands make_bands(std::int64_t rows, std::int64_t panels, int num_threads) {
  const std::int64_t fewest = ceil_div(rows, kMaxTaskRows);
  const std::int64_t wanted = ceil_div(kTasksPerThread * num_threads, panels);
  const std::int64_t count = max(fewest, min(wanted, rows / kMinTaskRows));
  return {count, ceil_div(rows, count)};
}

// The rows of panel number `panel` of `numbers`, which has a number for each block.
TL_INLINE BlockRows block_rows(const Tensor& numbers, std::int64_t panel) {
  if (numbers.data == nullptr) return {};
  const std::int64_t row_bytes = kPanelWidth * bits_of(numbers.dtype) / 8;
  const std::int64_t blocks = numbers.shape[numbers.rank - 1];
  return {numbers.as<const char>() + panel * blocks * row_bytes, row_bytes, numbers.dtype};
}

// Sums of rows of x over the blocks of a weight that has offsets, in the shared scratch.
TL_INLINE float* sum_rows(const float* x, std::int64_t rows, std::int64_t depth, std::int64_t blocks,
                          ThreadPool* pool) {
  auto* sums = static_cast<float*>(pool->shared_scratch());
  const auto sum_row = [=](std::int64_t r, int) {
    sum_blocks(x + r * depth, depth / blocks, blocks, sums + r * blocks);
  };
  if (rows > kMaxTileRows) {
    pool->parallel_for(rows, sum_row);
  } else {
    for (std::int64_t r = 0; r < rows; ++r) sum_row(r, 0);
  }
  return sums;
}

// What is computed at once: some rows of x, [rows, depth].
struct RowsOfX {
  const float* first;
  std::int64_t rows;
  std::int64_t depth;
  const float* sums;  // over blocks; null: nothing needs them
};

TL_INLINE Plain scales_of(const PackedWeight&, std::int64_t, const RowsOfX&, std::int64_t, Plain) { return {}; }
TL_INLINE Scaled scales_of(const PackedWeight& w, std::int64_t panel, const RowsOfX& x, std::int64_t row, Scaled) {
  const std::int64_t blocks = w.scale.shape[w.scale.rank - 1];
  return {.scale = block_rows(w.scale, panel),
          .offset = block_rows(w.offset, panel),
          .block = x.depth / blocks,
          .x_sums = x.sums == nullptr ? nullptr : x.sums + row * blocks,
          .x_blocks = blocks};
}

template <typename Weight, typename Scales, typename Epilogue>
TL_INLINE void multiply_rows(const RowsOfX& x, const PackedWeight& w, std::int64_t panels, ThreadPool* pool,
                             const Epilogue& epilogue) {
  const auto* weight = w.weight.as<const Weight>();
  const Bands bands = make_bands(x.rows, panels, pool->num_threads());
  pool->parallel_for(panels * bands.count, [&](std::int64_t task, int thread) {
    const std::int64_t panel = task / bands.count, first = task % bands.count * bands.rows;
    const std::int64_t count = min(bands.rows, x.rows - first);
    auto* scratch = static_cast<PanelScratch*>(pool->scratch(thread));
    multiply_panel(
        Product<Weight, Scales>{x.first + first * x.depth, x.depth,
                                weight + panel * x.depth / kElements<Weight> * kPanelWidth, kPanelWidth, scratch->sums,
                                kPanelWidth, count, x.depth, kPanelWidth, scales_of(w, panel, x, first, Scales{})},
        scratch);
    for (std::int64_t r = 0; r < count; ++r) epilogue(scratch->sums + r * kPanelWidth, first + r, panel);
  });
}

template <typename Weight, typename Scales, typename Epilogue>
void multiply_panels(const Tensor& x, const PackedWeight& w, std::int64_t panels, ThreadPool* pool,
                     const Epilogue& epilogue) {
  const std::int64_t rows = x.shape[0], depth = x.shape[1];
  const bool needs_sums = w.offset.data != nullptr;
  const std::int64_t blocks = needs_sums ? w.offset.shape[w.offset.rank - 1] : 1;
  const std::int64_t at_once = needs_sums ? kMaxXSums / blocks : rows;
  for (std::int64_t begin = 0; begin < rows; begin += at_once) {
    const float* first = x.as<const float>() + begin * depth;
    const std::int64_t count = min(at_once, rows - begin);
    const float* sums = needs_sums ? sum_rows(first, count, depth, blocks, pool) : nullptr;
    const auto of_rows = [&](const float* totals, std::int64_t row, std::int64_t panel) {
      epilogue(totals, begin + row, panel);
    };
    multiply_rows<Weight, Scales>(RowsOfX{first, count, depth, sums}, w, panels, pool, of_rows);
  }
}

// Calls epilogue(sums of 64 features, row, panel) for all rows and panels.
template <typename Epilogue>
void multiply_panels(const Tensor& x, const PackedWeight& w, std::int64_t panels, ThreadPool* pool,
                     const Epilogue& epilogue) {
  switch (w.weight.dtype) {
    case DType::kBFloat16:
      return multiply_panels<BFloat16, Plain>(x, w, panels, pool, epilogue);
    case DType::kFloat16:
      return multiply_panels<Float16, Plain>(x, w, panels, pool, epilogue);
    case DType::kInt8:
      return multiply_panels<std::int8_t, Scaled>(x, w, panels, pool, epilogue);
    case DType::kFloat8E4m3fn:
      return multiply_panels<Float8E4m3, Scaled>(x, w, panels, pool, epilogue);
    case DType::kInt4:
      return multiply_panels<Int4Word, Scaled>(x, w, panels, pool, epilogue);
    case DType::kUint4:
      return multiply_panels<UInt4Word, Scaled>(x, w, panels, pool, epilogue);
    case DType::kFloat4E2m1fn:
      return multiply_panels<Float4Word, Scaled>(x, w, panels, pool, epilogue);
    default:
      return multiply_panels<float, Plain>(x, w, panels, pool, epilogue);
  }
}

}  // namespace tl::TL_ISA
