// The product of activations and a weight in panels by AMX tiles.
//
// x is stored in tiles, rounded once for all panels to bfloat16, or to fixed point whose halves bfloat16 holds exactly.
// Weights are dequantized to bfloat16 a chunk of a panel at a time, which is exact for all stored types; all rows of a
// task pass over the chunk. Each block of a weight with scales is padded to whole tiles and summed separately, and its
// sum is scaled in float32.
#pragma once

#include <cstdint>

#include "cpu/kernel.h"
#include "cpu/products/panel_gemm.h"
#include "cpu/products/rounded_rows.h"
#include "cpu/products/tile_order.h"
#include "cpu/products/tiles.h"
#include "cpu/simd/bf16_pairs.h"
#include "host/thread_pool.h"

namespace tl::TL_ISA::tiles {

// A dequantized chunk of a panel takes 32 KiB of the 48 KiB of the L1 cache.
constexpr std::int64_t kChunkTiles = 8;
constexpr std::int64_t kMaxTaskRows = 128;
// How far ahead a panel is prefetched: it covers the latency of memory at 40 GB/s.
constexpr std::int64_t kPrefetchBytes = 8192;
// Tasks of fewer rows would dequantize the panel too often.
constexpr std::int64_t kMinTaskRows = 32;

constexpr std::int64_t kTileSums = kRows * kPanelWidth;
// Blocks whose sums are scaled together, which needs fewer passes over all sums.
constexpr std::int64_t kBlocksAtOnce = 2;

struct Scratch {
  alignas(64) BFloat16 dequantized[kChunkTiles * kDepth * kPanelWidth];
  alignas(64) float sums[kMaxTaskRows * kPanelWidth];
  alignas(64) float partial[kMaxTaskRows * kPanelWidth];
};
static_assert(sizeof(Scratch) <= kScratchBytesPerThread);
static_assert(kMaxStreams * kFewRows <= kMaxTaskRows);
static_assert(kMaxFixedBlock <= kChunkTiles * kDepth);

TL_INLINE bool can_multiply(std::int64_t in_features, const PackedWeight& w, bool is_quantized) {
  const bool is_exact = w.weight.dtype != DType::kFloat32 && w.weight.dtype != DType::kFloat16;
  const Depth depth = depth_of(in_features, w, is_quantized);
  return is_exact && row_tile_bytes(depth) <= static_cast<std::int64_t>(kSharedScratchBytes);
}

// Dequantizes `depth` elements of k of a panel to rows of pairs, with rows of zeros up to whole tiles.
template <typename Weight>
TL_INLINE void dequantize(const Weight* from, std::int64_t depth, BFloat16* to) {
  constexpr std::int64_t kRow = 2 * kPanelWidth;
  constexpr std::int64_t kAhead = kPrefetchBytes / sizeof(Weight);
  std::int64_t k = 0;
  if constexpr (kElements<Weight> == 8) {
    for (; k < depth; k += 8, from += kPanelWidth, to += 4 * kRow) {
      for (std::int64_t c = 0; c < kPanelWidth; c += kLanes) {
        __builtin_prefetch(from + kAhead + c);
        const auto words = load(from + c);
        store(to + 2 * c, pair_of<0>(words));
        store(to + kRow + 2 * c, pair_of<1>(words));
        store(to + 2 * kRow + 2 * c, pair_of<2>(words));
        store(to + 3 * kRow + 2 * c, pair_of<3>(words));
      }
    }
  } else {
    for (; k + 1 < depth; k += 2, from += 2 * kPanelWidth, to += kRow) {
      for (std::int64_t line = 0; line < 2 * kPanelLines<Weight>; ++line) {
        __builtin_prefetch(reinterpret_cast<const char*>(from + kAhead) + line * kLineBytes);
      }
      store_panel_pairs(from, from + kPanelWidth, to);
    }
    if (k < depth) {
      for (std::int64_t c = 0; c < kPanelWidth; c += kLanes) store(to + 2 * c, pair_exact(load(from + c), zero()));
      to += kRow;
      k += 2;
    }
  }
  for (; k % kDepth != 0; k += 2, to += kRow) {
    for (std::int64_t c = 0; c < kPanelWidth; c += kLanes) store(to + 2 * c, Pairs{});
  }
}

// A task: some rows of x, from a multiple of 16 on, times one panel.
template <typename Weight, typename Scales>
struct Task {
  const RoundedRows& x;
  const Depth& depth;
  const Weight* panel;
  Scales scales;
  std::int64_t first_row;
  std::int64_t rows;
  Scratch* scratch;

  // Calls use(tile of x, first row in the task, rows) for each 16 rows; `tile` counts along k.
  template <typename Use>
  TL_INLINE void for_row_tiles(std::int64_t tile, const Use& use) const {
    for (std::int64_t row = 0; row < rows; row += kRows) {
      use(x.row_tile(first_row + row, depth) + tile * kElementsOfX, row, min(kRows, rows - row));
    }
  }

  // Adds `products` of kBlocks blocks, [kBlocks][16][64], to the sums of the task.
  template <int kBlocks>
  TL_INLINE void scale_blocks(std::int64_t block, const float* products, std::int64_t row, std::int64_t count) const {
    const std::int64_t place = (first_row + row) * depth.blocks;
    const float* x_scales = x.scales == nullptr ? nullptr : x.scales + place;
    add_scaled<kBlocks>(scales, block, products, kTileSums, count, x.sums + place, x_scales,
                        scratch->sums + row * kPanelWidth);
  }

  TL_INLINE void multiply_block(const BFloat16* tile, const BFloat16* dequantized, float* to) const {
    zero_sums();
    if (depth.is_fixed()) {
      add_products<2>(tile, dequantized, depth.tiles);
    } else {
      add_products<1>(tile, dequantized, depth.tiles);
    }
    store_sums(to);
  }

  // Multiplies blocks `first` to first + count - 1, which fit a chunk together.
  TL_INLINE void multiply_blocks(std::int64_t first, std::int64_t count) const {
    constexpr std::int64_t kTile = kDepth * kPanelWidth;
    for (std::int64_t i = 0; i < count; ++i) {
      const Weight* from = panel + (first + i) * depth.block / kElements<Weight> * kPanelWidth;
      dequantize(from, depth.block, scratch->dequantized + i * depth.tiles * kTile);
    }
    finish_writes();
    for_row_tiles(first * depth.tiles_of_block(), [&](const BFloat16* tile, std::int64_t row, std::int64_t num_rows) {
      const std::int64_t step = depth.tiles_of_block() * kElementsOfX;
      for (std::int64_t i = 0; i < count; i += kBlocksAtOnce) {
        const std::int64_t at_once = min(kBlocksAtOnce, count - i);
        for (std::int64_t j = 0; j < at_once; ++j, tile += step) {
          multiply_block(tile, scratch->dequantized + (i + j) * depth.tiles * kTile, scratch->partial + j * kTileSums);
        }
        if (at_once == kBlocksAtOnce) {
          scale_blocks<kBlocksAtOnce>(first + i, scratch->partial, row, num_rows);
        } else {
          scale_blocks<1>(first + i, scratch->partial, row, num_rows);
        }
      }
    });
    finish_writes();
  }

  // Multiplies a whole block in bfloat16, chunk by chunk, and adds up its sums for all rows in `to`.
  TL_INLINE void multiply_long_block(std::int64_t block, float* to) const {
    for (std::int64_t tile = 0; tile < depth.tiles; tile += kChunkTiles) {
      const std::int64_t k = tile * kDepth, count = min(kChunkTiles, depth.tiles - tile);
      const Weight* from = panel + (block * depth.block + k) / kElements<Weight> * kPanelWidth;
      dequantize(from, min(depth.block - k, count * kDepth), scratch->dequantized);
      finish_writes();
      for_row_tiles(block * depth.tiles_of_block() + tile,
                    [&](const BFloat16* tile_of_x, std::int64_t row, std::int64_t) {
                      if (tile == 0) {
                        zero_sums();
                      } else {
                        load_sums(to + row * kPanelWidth);
                      }
                      add_products<1>(tile_of_x, scratch->dequantized, count);
                      store_sums(to + row * kPanelWidth);
                    });
      finish_writes();
    }
  }

  // Computes scratch->sums = x * panel.
  TL_INLINE void run() const {
    const FlushSubnormals flush;
    const Registers registers(min(rows, kRows));
    if constexpr (!kHasScales<Scales>) {
      multiply_long_block(0, scratch->sums);
    } else {
      for (std::int64_t i = 0; i < rows * kPanelWidth; i += kLanes) store(scratch->sums + i, zero());
      const std::int64_t at_once = kChunkTiles / depth.tiles;
      for (std::int64_t block = 0; block < depth.blocks; block += max(at_once, 1)) {
        if (at_once > 0) {
          multiply_blocks(block, min(at_once, depth.blocks - block));
          continue;
        }
        multiply_long_block(block, scratch->partial);
        for_row_tiles(0, [&](const BFloat16*, std::int64_t row, std::int64_t num_rows) {
          scale_blocks<1>(block, scratch->partial + row * kPanelWidth, row, num_rows);
        });
      }
    }
  }
};

// Divides rows into bands as panel_gemm.h does, but of whole tiles.
TL_INLINE Bands make_bands(std::int64_t rows, std::int64_t panels, int num_threads) {
  const std::int64_t fewest = ceil_div(rows, kMaxTaskRows);
  const std::int64_t wanted = ceil_div(kTasksPerThread * num_threads, panels);
  const std::int64_t count = max(fewest, min(wanted, rows / kMinTaskRows));
  const std::int64_t band = ceil_div(ceil_div(rows, count), kRows) * kRows;
  return {ceil_div(rows, band), band};
}

// Multiplies a few rows in tasks of several panels each.
template <int kCount, typename Weight, typename Scales>
void multiply_few(const RoundedRows& x, const PackedWeight& w, const Depth& depth, std::int64_t panels,
                  ThreadPool* pool, const Epilogue& epilogue) {
  const std::int64_t tasks = streaming_tasks(panels, pool->num_threads(), kMaxStreams);
  pool->parallel_for(tasks, [&](std::int64_t task, int thread) {
    const std::int64_t first = task * panels / tasks, last = (task + 1) * panels / tasks;
    auto* scratch = static_cast<Scratch*>(pool->scratch(thread));
    TaskOfFew<Weight, Scales, kCount>{x, depth, w, first, last - first, scratch->sums, scratch->partial}.run();
    epilogue(scratch->sums, x.begin, kCount, first, last - first);
  });
}

template <typename Weight, typename Scales>
void multiply_rounded(const RoundedRows& x, const PackedWeight& w, const Depth& depth, std::int64_t panels,
                      ThreadPool* pool, const Epilogue& epilogue) {
  switch (x.rows) {
    case 1:
      return multiply_few<1, Weight, Scales>(x, w, depth, panels, pool, epilogue);
    case 2:
      return multiply_few<2, Weight, Scales>(x, w, depth, panels, pool, epilogue);
    case 3:
      return multiply_few<3, Weight, Scales>(x, w, depth, panels, pool, epilogue);
    case kFewRows:
      return multiply_few<kFewRows, Weight, Scales>(x, w, depth, panels, pool, epilogue);
    default:
      break;
  }
  const auto* weight = w.weight.as<const Weight>();
  const std::int64_t items = depth.blocks * depth.block / kElements<Weight> * kPanelWidth;
  const Bands bands = make_bands(x.rows, panels, pool->num_threads());
  pool->parallel_for(panels * bands.count, [&](std::int64_t task, int thread) {
    const std::int64_t panel = task / bands.count, first = task % bands.count * bands.rows;
    const std::int64_t rows = min(bands.rows, x.rows - first);
    auto* scratch = static_cast<Scratch*>(pool->scratch(thread));
    Task<Weight, Scales>{x, depth, weight + panel * items, scales_of(w, panel, depth, Scales{}), first, rows, scratch}
        .run();
    epilogue(scratch->sums, x.begin + first, rows, panel, 1);
  });
}

template <typename Weight, typename Scales>
void multiply_weight(const Tensor& x, const PackedWeight& w, bool is_quantized, std::int64_t panels, ThreadPool* pool,
                     const Epilogue& epilogue) {
  const Depth depth = depth_of(x.shape[1], w, is_quantized);
  const std::int64_t at_once = static_cast<std::int64_t>(kSharedScratchBytes) / row_tile_bytes(depth) * kRows;
  auto* tiles = static_cast<BFloat16*>(pool->shared_scratch());
  for (std::int64_t begin = 0; begin < x.shape[0]; begin += at_once) {
    const std::int64_t rows = min(at_once, x.shape[0] - begin);
    auto* sums = reinterpret_cast<float*>(tiles + ceil_div(rows, kRows) * depth.all_tiles() * kElementsOfX);
    float* scales = depth.is_fixed() ? sums + rows * depth.blocks : nullptr;
    const RoundedRows rounded{tiles, sums, scales, begin, rows};
    round_rows<Weight>(x.as<const float>() + begin * x.shape[1], depth, rounded, pool);
    multiply_rounded<Weight, Scales>(rounded, w, depth, panels, pool, epilogue);
  }
}

// Calls use(weight, scales) with values of the element type of w, which bfloat16 must hold exactly, and the type of its
// scales.
template <typename Use>
void with_exact_weight_type(const PackedWeight& w, const Use& use) {
  with_quantized_type(w, use, [&] { use(BFloat16{}, Plain{}); });
}

// Calls `epilogue` for all rows and panels.
inline void multiply_panels(const Tensor& x, const PackedWeight& w, bool is_quantized, std::int64_t panels,
                            ThreadPool* pool, const Epilogue& epilogue) {
  with_exact_weight_type(w, [&](auto weight, auto scales) {
    multiply_weight<decltype(weight), decltype(scales)>(x, w, is_quantized, panels, pool, epilogue);
  });
}

}  // namespace tl::TL_ISA::tiles
