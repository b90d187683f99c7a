// The product of activations and a weight in panels (products.h) by vector instructions.
//
// Few rows are limited by memory: several panels are streamed side by side, once, and dequantized in registers. Many
// rows are limited by arithmetic: all rows pass over a chunk of one panel while it is in the L1 cache. Between chunks,
// partial sums are stored as float32, which changes no bit. Weights are dequantized without their scales:
// micro_kernel.h scales the sums of each block.
#pragma once

#include <cstdint>

#include "cpu/kernel.h"
#include "cpu/products/micro_kernel.h"
#include "cpu/products/products.h"
#include "cpu/streams.h"
#include "host/thread_pool.h"

namespace tl::TL_ISA {

// Bytes of a chunk of a stored panel. The chunk and the next one fit the L1 cache.
constexpr std::int64_t kChunkBytes = 16 * 1024;
// The depth of the longest chunk, which fits the L2 cache when dequantized.
constexpr std::int64_t kMaxChunkDepth = kChunkBytes / (kPanelWidth * sizeof(BFloat16));
// Bytes of a chunk of each panel that is streamed side by side with others: few enough that these chunks and the next
// ones fit the L1 cache, enough to amortize the fixed cost of a chunk.
constexpr std::int64_t kStreamedBytes = 4 * 1024;
template <typename Weight>
constexpr std::int64_t chunk_depth(std::int64_t bytes) {
  const auto row = static_cast<std::int64_t>(kPanelWidth * sizeof(Weight));
  return min(kMaxChunkDepth, bytes / row * kElements<Weight>);
}
// Elements of at most a byte take a core longer to dequantize than to read, so it streams one panel, prefetched far
// ahead.
template <typename Weight>
constexpr std::int64_t kMostStreams = sizeof(Weight) > kElements<Weight> ? kMaxStreams : 1;
constexpr std::int64_t kPrefetchBytes = 8192;
// The most rows of a task, over all its panels: their sums take 24 KiB.
constexpr std::int64_t kMaxTaskRows = 96;
// Larger tasks are not split into tasks of fewer rows: reading the panel again would cost more than it gains.
constexpr std::int64_t kMinTaskRows = 24;
// From this number of rows on, dequantizing a chunk once is cheaper than doing so for every tile of rows. Chunks of
// 4-bit elements are dequantized once if they are used more than once.
template <typename Weight>
constexpr std::int64_t kMinRowsToDequantize = kElements<Weight> > 1 ? 1 : 32;
// The number of tasks for each thread: enough that all threads end at about the same time.
constexpr std::int64_t kTasksPerThread = 8;

// A task's memory in the thread's scratch.
struct PanelScratch {
  alignas(64) float dequantized[kMaxChunkDepth * kPanelWidth];
  alignas(64) float sums[kMaxTaskRows * kPanelWidth];
  alignas(64) float partial[kMaxTaskRows * kPanelWidth];
};
static_assert(sizeof(PanelScratch) <= kScratchBytesPerThread);
static_assert(kMaxStreams * kMaxTileRows <= kMaxTaskRows);
// How many sums of x over blocks the shared scratch memory holds.
constexpr std::int64_t kMaxXSums = static_cast<std::int64_t>(kSharedScratchBytes / sizeof(float));
static_assert(kMaxXSums >= kMaxWeightBlocks);

template <int kIndex, typename Item>
TL_INLINE void store_elements(const Item& item, float* to) {
  store(to + kIndex * kPanelWidth, element<kIndex>(item));
}

// Dequantizes `depth` rows of a panel to float32, without scales.
template <typename Weight>
TL_INLINE void dequantize(const Weight* from, std::int64_t depth, float* to) {
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

// Cache lines of a row of a panel's items.
template <typename Weight>
constexpr int kPanelLines = kPanelWidth * sizeof(Weight) / kLineBytes;

// Sums each block of `block` elements of x, in an order that depends on the block alone.
TL_INLINE void sum_blocks(const float* x, std::int64_t block, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i, x += block) {
    Vec sum = zero();
    std::int64_t k = 0;
    for (; k + kLanes <= block; k += kLanes) sum = sum + load(x + k);
    if (k < block) sum = sum + load_first(x + k, block - k);
    to[i] = reduce_add(sum);
  }
}

// Multiplies one chunk by all rows of p, while the next chunk is prefetched into the L1 cache.
template <typename Weight, typename Scales>
TL_INLINE void multiply_chunk(const Product<Weight, Scales>& p, float* dequantized) {
  // The lines of a row that each pass prefetches: half of them in each of the first two passes. A row of bytes is one
  // line; the lines of a row of words are prefetched during 8 rows.
  constexpr int kLines = kElements<Weight> == 1 && kPanelLines<Weight> > 1 ? kPanelLines<Weight> / 2 : 1;
  const std::int64_t items = p.depth / kElements<Weight> * kPanelWidth;
  const std::int64_t bytes = items * static_cast<std::int64_t>(sizeof(Weight));
  Prefetch next{Streams(p.w + items), bytes / kLineBytes};
  if constexpr (kElements<Weight> == 1) {
    if (sizeof(Weight) == sizeof(float) || p.rows < kMinRowsToDequantize<Weight>)
      return multiply<kPanelWidth, kLines>(p, &next);
  }
  dequantize(p.w, p.depth, dequantized);
  multiply<kPanelWidth, kLines>(Product<float, Scales>{p.x, p.x_stride, dequantized, kPanelWidth, p.sums, p.sums_stride,
                                                       p.rows, p.depth, p.columns, p.scales},
                                &next);
}

// Bands of rows. Each pair of a band and a panel is a task.
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

// The rows of `numbers` (scales or offsets) for the blocks of panel `panel`.
TL_INLINE BlockRows block_rows(const Tensor& numbers, std::int64_t panel) {
  if (numbers.data == nullptr) return {};
  const std::int64_t row_bytes = kPanelWidth * bits_of(numbers.dtype) / 8;
  const std::int64_t blocks = numbers.shape[numbers.rank - 1];
  return {numbers.as<const char>() + panel * blocks * row_bytes, row_bytes, numbers.dtype};
}

// Sums rows of x over the blocks of a weight that has offsets, into the shared scratch memory.
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

// A part of x that is computed at once: rows from `begin` on, [rows, depth].
struct RowsOfX {
  const float* first;
  std::int64_t begin;
  std::int64_t rows;
  std::int64_t depth;
  const float* sums;  // sums over blocks; null if not needed
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

// The most rows that one tile holds with all columns of a panel, so that the panel is read once.
constexpr int kStreamedRows = rows_of_whole_tile<kPanelWidth>();
TL_INLINE bool are_streamed(std::int64_t rows) { return rows <= kStreamedRows; }

// A task: some rows of x times one or several neighbouring panels. Its sums are [panels][rows][64].
template <typename Weight, typename Scales>
struct PanelTask {
  const RowsOfX& x;
  const PackedWeight& w;
  std::int64_t first_row;
  std::int64_t rows;
  std::int64_t first_panel;
  std::int64_t panels;
  PanelScratch* scratch;

  TL_INLINE std::int64_t items_of_panel() const { return x.depth / kElements<Weight> * kPanelWidth; }
  TL_INLINE const Weight* first_item() const { return w.weight.as<const Weight>() + first_panel * items_of_panel(); }

  // The products of all rows with each panel of a task, from the first element of k on.
  struct Products {
    Product<Weight, Scales> of_panel[kMaxStreams];
  };
  TL_INLINE Products products() const {
    Products all;
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      all.of_panel[panel] = {x.first + first_row * x.depth,
                             x.depth,
                             first_item() + panel * items_of_panel(),
                             kPanelWidth,
                             scratch->sums + panel * rows * kPanelWidth,
                             kPanelWidth,
                             rows,
                             x.depth,
                             kPanelWidth,
                             scales_of(w, first_panel + panel, x, first_row, Scales{})};
    }
    return all;
  }

  // Calls use(product) for each chunk of up to `most` elements of k, and for each panel within the chunk.
  template <typename Use>
  TL_INLINE void for_chunks(std::int64_t most, Plain, const Use& use) const {
    Products all = products();
    for (std::int64_t left = x.depth; left > 0; left -= most) {
      for (std::int64_t panel = 0; panel < panels; ++panel) {
        Product<Weight, Scales>& p = all.of_panel[panel];
        p.depth = min(left, most);
        use(p);
        p.skip_depth(p.depth);
      }
    }
  }

  // Chunks are whole blocks, or parts of a block that is longer than a chunk.
  template <typename Use>
  TL_INLINE void for_chunks(std::int64_t most, Scaled, const Use& use) const {
    Products all = products();
    const std::int64_t block = all.of_panel[0].scales.block;
    const bool whole = block <= most;
    const std::int64_t blocks = whole ? most / block : 1;
    for (std::int64_t done = 0, depth = 0; done < x.depth; done += depth) {
      const std::int64_t in_block = whole ? 0 : done % block;
      depth = min(whole ? x.depth - done : block - in_block, whole ? blocks * block : most);
      for (std::int64_t panel = 0; panel < panels; ++panel) {
        Product<Weight, Scales>& p = all.of_panel[panel];
        p.depth = depth;
        p.scales.partial = whole ? nullptr : scratch->partial + panel * rows * kPanelWidth;
        p.scales.begins = in_block == 0;
        p.scales.ends = whole || in_block + depth == block;
        use(p);
        if (p.scales.ends) p.scales.skip_blocks(blocks);
        p.skip_depth(depth);
      }
    }
  }

  TL_INLINE void stream() const {
    const std::int64_t bytes = items_of_panel() * static_cast<std::int64_t>(sizeof(Weight));
    if constexpr (kElements<Weight> > 1) {
      Streams next(first_item() + kPrefetchBytes / sizeof(Weight));
      return for_chunks(x.depth, Scales{}, [&](const Product<Weight, Scales>& p) {
        multiply_whole_tile<kStreamedRows, kPanelWidth, kPanelLines<Weight>>(p, &next);
      });
    }
    if constexpr (kMostStreams<Weight> == 1) {
      Prefetch next{Streams(first_item() + kPrefetchBytes / sizeof(Weight)), bytes / kLineBytes};
      return for_chunks(x.depth, Scales{}, [&](const Product<Weight, Scales>& p) {
        multiply<kPanelWidth, kPanelLines<Weight>>(p, &next);
      });
    }
    const std::int64_t ahead = panels * min(bytes, kStreamedBytes) / kLineBytes;
    Prefetch next{Streams(first_item(), bytes, panels), panels * bytes / kLineBytes - ahead};
    for (std::int64_t line = 0; line < ahead; ++line) next.streams.prefetch_line();
    for_chunks(chunk_depth<Weight>(kStreamedBytes), Scales{},
               [&](const Product<Weight, Scales>& p) { multiply<kPanelWidth, kPanelLines<Weight>>(p, &next); });
  }

  // Computes the sums over the whole depth.
  TL_INLINE void run() const {
    for (std::int64_t i = 0; i < panels * rows * kPanelWidth; i += kLanes) store(scratch->sums + i, zero());
    if (are_streamed(rows)) return stream();
    for_chunks(chunk_depth<Weight>(kChunkBytes), Scales{},
               [&](const Product<Weight, Scales>& p) { multiply_chunk(p, scratch->dequantized); });
  }
};

template <typename Weight, typename Scales>
TL_INLINE void multiply_rows(const RowsOfX& x, const PackedWeight& w, std::int64_t panels, ThreadPool* pool,
                             const Epilogue& epilogue) {
  const int threads = pool->num_threads();
  const Bands bands = make_bands(x.rows, panels, threads);
  const std::int64_t groups = are_streamed(x.rows) ? streaming_tasks(panels, threads, kMostStreams<Weight>) : panels;
  pool->parallel_for(groups * bands.count, [&](std::int64_t task, int thread) {
    const std::int64_t group = task / bands.count, first = task % bands.count * bands.rows;
    const std::int64_t panel = group * panels / groups, end = (group + 1) * panels / groups;
    const std::int64_t count = min(bands.rows, x.rows - first);
    auto* scratch = static_cast<PanelScratch*>(pool->scratch(thread));
    PanelTask<Weight, Scales>{x, w, first, count, panel, end - panel, scratch}.run();
    epilogue(scratch->sums, x.begin + first, count, panel, end - panel);
  });
}

template <typename Weight, typename Scales>
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
    multiply_rows<Weight, Scales>(RowsOfX{first, begin, count, depth, sums}, w, panels, pool, epilogue);
  }
}

// Calls use(weight, scales) with values of the element type of a quantized w and the type of its scales, or
// otherwise().
template <typename Use, typename Otherwise>
void with_quantized_type(const PackedWeight& w, const Use& use, const Otherwise& otherwise) {
  switch (w.weight.dtype) {
    case DType::kInt8:
      return use(std::int8_t{}, Scaled{});
    case DType::kFloat8E4m3fn:
      return use(Float8E4m3{}, Scaled{});
    case DType::kInt4:
      return use(Int4Word{}, Scaled{});
    case DType::kUint4:
      return use(UInt4Word{}, Scaled{});
    case DType::kFloat4E2m1fn:
      return use(Float4Word{}, Scaled{});
    default:
      return otherwise();
  }
}

// Calls use(weight, scales) with values of the element type of w and the type of its scales.
template <typename Use>
void with_weight_type(const PackedWeight& w, const Use& use) {
  with_quantized_type(w, use, [&] {
    switch (w.weight.dtype) {
      case DType::kBFloat16:
        return use(BFloat16{}, Plain{});
      case DType::kFloat16:
        return use(Float16{}, Plain{});
      default:
        return use(float{}, Plain{});
    }
  });
}

// Calls `epilogue` for all rows and panels.
inline void multiply_panels(const Tensor& x, const PackedWeight& w, std::int64_t panels, ThreadPool* pool,
                            const Epilogue& epilogue) {
  with_weight_type(w, [&](auto weight, auto scales) {
    multiply_panels<decltype(weight), decltype(scales)>(x, w, panels, pool, epilogue);
  });
}

}  // namespace tl::TL_ISA
