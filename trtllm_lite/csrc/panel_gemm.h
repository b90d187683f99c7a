// Activations times a weight in panels of 64 features (plugins/README.md): what Linear and GatedLinear share.
//
// Few rows: memory is the limit, each panel is streamed once and widened in registers. Many rows: arithmetic is the
// limit, a chunk of the panel is widened once into the first-level cache and all rows pass over it. Partial sums are
// floats in memory between chunks, which changes no bit.
#pragma once

#include <cstdint>

#include "kernel.h"
#include "micro_kernel.h"
#include "thread_pool.h"

namespace tl::TL_ISA {

constexpr int kPanelWidth = 64;
// 32 KiB of float: fits the first-level cache together with a tile of activations.
constexpr std::int64_t kChunkDepth = 128;
// Rows of one task; their sums take 24 KiB.
constexpr std::int64_t kMaxTaskRows = 96;
// From here on, widening a chunk once is cheaper than widening it for every tile of rows.
constexpr std::int64_t kMinRowsToWiden = 3 * kMaxTileRows;
constexpr int kPrefetchBytes = 2048;

// One task's memory in the thread's scratch.
struct PanelScratch {
  alignas(64) float widened[kChunkDepth * kPanelWidth];
  alignas(64) float sums[kMaxTaskRows * kPanelWidth];
};
static_assert(sizeof(PanelScratch) <= kScratchBytesPerThread);

template <typename Weight>
TL_INLINE void widen(const Weight* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; i += kPanelWidth) {
    prefetch<kPrefetchBytes>(from + i, kPanelWidth * static_cast<int>(sizeof(Weight)));
    for (int v = 0; v < kPanelWidth; v += kLanes) store(to + i + v, load(from + i + v));
  }
}

// scratch->sums[r][64] = x[r][depth] * panel[depth][64] for rows <= kMaxTaskRows.
template <typename Weight>
void multiply_panel(const float* x, std::int64_t rows, std::int64_t depth, const Weight* panel, PanelScratch* scratch) {
  for (std::int64_t i = 0; i < rows * kPanelWidth; i += kLanes) store(scratch->sums + i, zero());
  const bool one_tile = rows <= kMaxTileRows && tile_vecs(static_cast<int>(rows)) * kLanes >= kPanelWidth;
  const std::int64_t chunk = one_tile ? depth : kChunkDepth;
  for (std::int64_t k = 0; k < depth; k += chunk) {
    const std::int64_t size = min(chunk, depth - k);
    const Weight* w = panel + k * kPanelWidth;
    if (sizeof(Weight) < sizeof(float) && rows >= kMinRowsToWiden) {
      widen(w, size * kPanelWidth, scratch->widened);
      multiply(Product<float>{x + k, depth, scratch->widened, kPanelWidth, scratch->sums, kPanelWidth, rows, size,
                              kPanelWidth});
    } else {
      multiply<kPrefetchBytes>(
          Product<Weight>{x + k, depth, w, kPanelWidth, scratch->sums, kPanelWidth, rows, size, kPanelWidth});
    }
  }
}

// How a product is cut into tasks: bands of rows, and within a band one panel each.
struct PanelGrid {
  std::int64_t panels;
  std::int64_t bands;
  std::int64_t band_rows;
};

TL_INLINE PanelGrid make_panel_grid(std::int64_t rows, std::int64_t panels) {
  const std::int64_t bands = ceil_div(rows, kMaxTaskRows);
  return {panels, bands, ceil_div(rows, bands)};
}

// Calls epilogue(sums of row `row` in panel `panel`, row, panel) for every row and panel.
template <typename Weight, typename Epilogue>
void multiply_panels(const Tensor& x, const Weight* weight, std::int64_t panels, ThreadPool* pool,
                     const Epilogue& epilogue) {
  const std::int64_t rows = x.shape[0], depth = x.shape[1];
  if (rows == 0) return;
  const PanelGrid grid = make_panel_grid(rows, panels);
  pool->parallel_for(grid.panels * grid.bands, [&](std::int64_t task, int thread) {
    const std::int64_t panel = task / grid.bands, first = task % grid.bands * grid.band_rows;
    const std::int64_t count = min(grid.band_rows, rows - first);
    auto* scratch = static_cast<PanelScratch*>(pool->scratch(thread));
    multiply_panel(x.as<const float>() + first * depth, count, depth, weight + panel * depth * kPanelWidth, scratch);
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
    default:
      return multiply_panels(x, weight.as<const float>(), panels, pool, epilogue);
  }
}

}  // namespace tl::TL_ISA
