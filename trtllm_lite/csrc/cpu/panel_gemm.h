// The product of activations and a weight in panels of 64 features (plugins/README.md), for Linear and GatedLinear.
//
// Few rows: memory is the limit, each panel is streamed once and widened in registers. Many rows: arithmetic is the
// limit, all rows pass over a chunk of the panel while it is in the first-level cache. Partial sums are floats in
// memory between chunks, which changes no bit.
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
constexpr std::int64_t kChunkDepth = min(kMaxChunkDepth, kChunkBytes / (kPanelWidth * sizeof(Weight)));
// Rows of one task: their sums take 24 KiB.
constexpr std::int64_t kMaxTaskRows = 96;
// Tasks of fewer rows are not made of larger ones: reading the panel again would cost more than it gains.
constexpr std::int64_t kMinTaskRows = 24;
// From here on, widening a chunk once is cheaper than widening it for every tile of rows.
constexpr std::int64_t kMinRowsToWiden = 32;
// How far ahead a streamed panel is prefetched; this covers the latency of memory at 40 GB/s.
constexpr std::int64_t kPrefetchBytes = 8192;
// There are so many tasks for each thread that the threads end at about the same time.
constexpr std::int64_t kTasksPerThread = 8;

// One task's memory in the thread's scratch.
struct PanelScratch {
  alignas(64) float widened[kMaxChunkDepth * kPanelWidth];
  alignas(64) float sums[kMaxTaskRows * kPanelWidth];
};
static_assert(sizeof(PanelScratch) <= kScratchBytesPerThread);

template <typename Weight>
TL_INLINE void widen(const Weight* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; i += kLanes) store(to + i, load(from + i));
}

template <typename Weight>
TL_INLINE Prefetch prefetch_range(const Weight* first, std::int64_t count, std::int64_t step) {
  return {reinterpret_cast<const char*>(first), reinterpret_cast<const char*>(first + count),
          step * static_cast<std::int64_t>(sizeof(Weight))};
}

// Cache lines of a row of a panel.
template <typename Weight>
constexpr int kPanelLines = kPanelWidth * sizeof(Weight) / kLineBytes;

// Multiplies where one tile holds all rows and columns, so that the panel is read once.
template <typename Weight>
TL_INLINE void stream_panel(const Product<Weight>& p) {
  constexpr std::int64_t kAhead = kPrefetchBytes / sizeof(Weight);
  multiply<kPanelLines<Weight>>(p, prefetch_range(p.w + kAhead, p.depth * kPanelWidth, kPanelWidth));
}

// Multiplies where several tiles pass over each chunk, and prefetch the next chunk meanwhile.
template <typename Weight>
TL_INLINE void multiply_chunks(Product<Weight> p, float* widened) {
  // Half of the lines in each of the first two passes; a row of bytes is one line.
  constexpr int kLines = kPanelLines<Weight> > 1 ? kPanelLines<Weight> / 2 : 1;
  const bool widens = sizeof(Weight) < sizeof(float) && p.rows >= kMinRowsToWiden;
  for (std::int64_t left = p.depth; left > 0; left -= kChunkDepth<Weight>) {
    p.depth = min(left, kChunkDepth<Weight>);
    const Weight* next = p.w + p.depth * kPanelWidth;
    constexpr int kStep = kLines * kLineBytes / sizeof(Weight);
    const Prefetch prefetch = prefetch_range(next, p.depth * kPanelWidth, kStep);
    if (widens) {
      widen(p.w, p.depth * kPanelWidth, widened);
      multiply<kLines>(
          Product<float>{p.x, p.x_stride, widened, kPanelWidth, p.sums, p.sums_stride, p.rows, p.depth, p.columns},
          prefetch);
    } else {
      multiply<kLines>(p, prefetch);
    }
    p.x += p.depth;
    p.w = next;
  }
}

// p.sums = p.x * p.w for one panel.
template <typename Weight>
void multiply_panel(const Product<Weight>& p, float* widened) {
  for (std::int64_t i = 0; i < p.rows * kPanelWidth; i += kLanes) store(p.sums + i, zero());
  if (p.rows <= kMaxTileRows && tile_vecs(static_cast<int>(p.rows)) * kLanes >= kPanelWidth) {
    stream_panel(p);
  } else {
    multiply_chunks(p, widened);
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

// Calls epilogue(sums of 64 features, row, panel) for all rows and panels.
template <typename Weight, typename Epilogue>
void multiply_panels(const Tensor& x, const Weight* weight, std::int64_t panels, ThreadPool* pool,
                     const Epilogue& epilogue) {
  const std::int64_t rows = x.shape[0], depth = x.shape[1];
  if (rows == 0) return;
  const Bands bands = make_bands(rows, panels, pool->num_threads());
  pool->parallel_for(panels * bands.count, [&](std::int64_t task, int thread) {
    const std::int64_t panel = task / bands.count, first = task % bands.count * bands.rows;
    const std::int64_t count = min(bands.rows, rows - first);
    auto* scratch = static_cast<PanelScratch*>(pool->scratch(thread));
    multiply_panel(Product<Weight>{x.as<const float>() + first * depth, depth, weight + panel * depth * kPanelWidth,
                                   kPanelWidth, scratch->sums, kPanelWidth, count, depth, kPanelWidth},
                   scratch->widened);
    for (std::int64_t r = 0; r < count; ++r) epilogue(scratch->sums + r * kPanelWidth, first + r, panel);
  });
}

// Dispatches on the storage type of the weight.
template <typename Epilogue>
void multiply_panels(const Tensor& x, const Tensor& weight, std::int64_t panels, ThreadPool* pool,
                     const Epilogue& epilogue) {
  switch (weight.dtype) {
    case DType::kBFloat16:
      return multiply_panels(x, weight.as<const BFloat16>(), panels, pool, epilogue);
    case DType::kFloat16:
      return multiply_panels(x, weight.as<const Float16>(), panels, pool, epilogue);
    case DType::kInt8:
      return multiply_panels(x, weight.as<const std::int8_t>(), panels, pool, epilogue);
    case DType::kFloat8E4m3fn:
      return multiply_panels(x, weight.as<const Float8E4m3>(), panels, pool, epilogue);
    default:
      return multiply_panels(x, weight.as<const float>(), panels, pool, epilogue);
  }
}

}  // namespace tl::TL_ISA
