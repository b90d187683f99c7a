// The product of activations and a weight in panels by the tiles of AMX.
//
// x is rounded to bfloat16 once for all panels, and lies in tiles. Weights are widened to bfloat16, a chunk of a panel
// at a time, which is exact for all types that are stored; all rows of a task pass over the chunk. Each block of a
// weight with scales is padded to whole tiles, summed by itself, and its sum is scaled in float32.
#pragma once

#include <cstdint>

#include "cpu/bf16_pairs.h"
#include "cpu/kernel.h"
#include "cpu/panel_gemm.h"
#include "cpu/thread_pool.h"
#include "cpu/tile_order.h"
#include "cpu/tiles.h"

namespace tl::TL_ISA::tiles {

// A chunk of a panel, widened, takes 32 KiB of the 48 of the first-level cache.
constexpr std::int64_t kChunkTiles = 8;
constexpr std::int64_t kMaxTaskRows = 128;
// Tasks of fewer rows would widen the panel too often.
constexpr std::int64_t kMinTaskRows = 32;

struct Scratch {
  alignas(64) BFloat16 widened[kChunkTiles * kDepth * kPanelWidth];
  alignas(64) float sums[kMaxTaskRows * kPanelWidth];
  alignas(64) float partial[kMaxTaskRows * kPanelWidth];
};
static_assert(sizeof(Scratch) <= kScratchBytesPerThread);

// How in_features are cut: `blocks` blocks of `block` elements, each padded to `tiles` tiles.
struct Depth {
  std::int64_t blocks;
  std::int64_t block;
  std::int64_t tiles;

  TL_INLINE std::int64_t all_tiles() const { return blocks * tiles; }
};

TL_INLINE Depth depth_of(const Tensor& x, const PackedWeight& w) {
  const std::int64_t blocks = w.scale.data == nullptr ? 1 : w.scale.shape[w.scale.rank - 1];
  const std::int64_t block = x.shape[1] / blocks;
  return {blocks, block, ceil_div(block, kDepth)};
}

// Bytes of 16 rows of x in tiles, and of their sums over blocks.
TL_INLINE std::int64_t row_tile_bytes(const Depth& depth) {
  return depth.all_tiles() * kElementsOfX * static_cast<std::int64_t>(sizeof(BFloat16)) +
         kRows * depth.blocks * static_cast<std::int64_t>(sizeof(float));
}

TL_INLINE bool can_multiply(const Tensor& x, const PackedWeight& w) {
  const bool is_exact = w.weight.dtype != DType::kFloat32 && w.weight.dtype != DType::kFloat16;
  return is_exact && row_tile_bytes(depth_of(x, w)) <= static_cast<std::int64_t>(kSharedScratchBytes);
}

// Some rows of x, and their sums over blocks [rows][blocks]. Rows lie in tiles [row tiles][all tiles][16][32]; a few
// rows lie in their place as float32 [rows][all tiles][32], for tile_order.h.
struct RoundedRows {
  BFloat16* tiles;
  float* sums;
  std::int64_t rows;

  TL_INLINE bool are_few() const { return rows <= kFewRows; }
  TL_INLINE float* floats(std::int64_t row, const Depth& depth) const {
    return reinterpret_cast<float*>(tiles) + row * depth.all_tiles() * kDepth;
  }

  TL_INLINE BFloat16* row_tile(std::int64_t first_row, const Depth& depth) const {
    return tiles + first_row / kRows * depth.all_tiles() * kElementsOfX;
  }
};

template <typename Weight>
TL_INLINE void round_row(const float* x, std::int64_t row, const Depth& depth, const RoundedRows& to) {
  BFloat16* tile = to.row_tile(row, depth) + row % kRows * kDepth;
  float* floats = to.floats(row, depth);
  for (std::int64_t block = 0; block < depth.blocks; ++block, x += depth.block) {
    Vec sum = zero();
    for (std::int64_t k = 0; k < depth.block; k += kDepth, tile += kElementsOfX) {
      const std::int64_t left = depth.block - k;
      const Vec first = load_first(x + k, left), second = load_first(x + k + kLanes, left - kLanes);
      const Pairs pairs = round_to_pairs<Weight>(first, second);
      if (to.are_few()) {
        store(floats, first_of(pairs));
        store(floats + kLanes, second_of(pairs));
        floats += kDepth;
      } else {
        store(tile, pairs);
      }
      sum = sum + sum_of(pairs);
    }
    to.sums[row * depth.blocks + block] = reduce_add(sum);
  }
}

template <typename Weight>
TL_INLINE void round_rows(const float* x, const Depth& depth, const RoundedRows& to, ThreadPool* pool) {
  const std::int64_t width = depth.blocks * depth.block;
  const auto round_tile = [&](std::int64_t tile, int) {
    const std::int64_t last = min((tile + 1) * kRows, to.rows);
    for (std::int64_t row = tile * kRows; row < last; ++row) round_row<Weight>(x + row * width, row, depth, to);
  };
  if (to.rows <= kRows) {
    round_tile(0, 0);
  } else {
    pool->parallel_for(ceil_div(to.rows, kRows), round_tile);
  }
}

// `depth` elements of k of a panel as rows of pairs, and rows of zeros up to whole tiles.
template <typename Weight>
TL_INLINE void widen(const Weight* from, std::int64_t depth, BFloat16* to) {
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

// sums += scale * products + offset * x_sums of a block, for the rows of a tile and 64 columns.
TL_INLINE void add_scaled(const Scaled& scales, std::int64_t block, const float* products, std::int64_t rows,
                          const float* x_sums, float* sums) {
  constexpr int kVecs = kPanelWidth / kLanes;
  const bool has_offset = scales.offset.first != nullptr;
  Vec scale[kVecs], offset[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    scale[v] = scales.scale.load_at(block, v * kLanes);
    offset[v] = has_offset ? scales.offset.load_at(block, v * kLanes) : zero();
  }
  for (std::int64_t r = 0; r < rows; ++r, products += kPanelWidth, sums += kPanelWidth) {
    const Vec x_sum = broadcast(has_offset ? x_sums[r * scales.x_blocks + block] : 0.0f);
    for (int v = 0; v < kVecs; ++v) {
      Vec sum = fma(load(products + v * kLanes), scale[v], load(sums + v * kLanes));
      if (has_offset) sum = fma(x_sum, offset[v], sum);
      store(sums + v * kLanes, sum);
    }
  }
}

// One task: some rows of x, from a multiple of 16 on, times one panel.
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

  TL_INLINE void scale_block(std::int64_t block, const float* products, std::int64_t row, std::int64_t count) const {
    const float* x_sums = x.sums + (first_row + row) * depth.blocks;
    add_scaled(scales, block, products, count, x_sums, scratch->sums + row * kPanelWidth);
  }

  // Blocks `first` to first + count - 1, which fit a chunk together.
  TL_INLINE void multiply_blocks(std::int64_t first, std::int64_t count) const {
    constexpr std::int64_t kTile = kDepth * kPanelWidth;
    for (std::int64_t i = 0; i < count; ++i) {
      const Weight* from = panel + (first + i) * depth.block / kElements<Weight> * kPanelWidth;
      widen(from, depth.block, scratch->widened + i * depth.tiles * kTile);
    }
    finish_writes();
    for_row_tiles(first * depth.tiles, [&](const BFloat16* tile, std::int64_t row, std::int64_t num_rows) {
      for (std::int64_t i = 0; i < count; ++i) {
        zero_sums();
        add_products(tile + i * depth.tiles * kElementsOfX, scratch->widened + i * depth.tiles * kTile, depth.tiles);
        store_sums(scratch->partial);
        scale_block(first + i, scratch->partial, row, num_rows);
      }
    });
    finish_writes();
  }

  // The whole of one block, chunk by chunk, whose sums of all rows are collected in `to`.
  TL_INLINE void multiply_long_block(std::int64_t block, float* to) const {
    for (std::int64_t tile = 0; tile < depth.tiles; tile += kChunkTiles) {
      const std::int64_t k = tile * kDepth, count = min(kChunkTiles, depth.tiles - tile);
      const Weight* from = panel + (block * depth.block + k) / kElements<Weight> * kPanelWidth;
      widen(from, min(depth.block - k, count * kDepth), scratch->widened);
      finish_writes();
      for_row_tiles(block * depth.tiles + tile, [&](const BFloat16* tile_of_x, std::int64_t row, std::int64_t) {
        if (tile == 0) {
          zero_sums();
        } else {
          load_sums(to + row * kPanelWidth);
        }
        add_products(tile_of_x, scratch->widened, count);
        store_sums(to + row * kPanelWidth);
      });
      finish_writes();
    }
  }

  // A few rows: block by block, in vectors.
  template <int kCount>
  TL_INLINE void multiply_few() const {
    constexpr int kVecs = kCount <= 2 ? 4 : 2;  // enough chains for the latency of sums, few enough for registers
    const std::int64_t x_stride = depth.all_tiles() * kDepth;
    for (std::int64_t block = 0; block < depth.blocks; ++block) {
      const float* x_tiles = x.floats(first_row, depth) + block * depth.tiles * kDepth;
      const Weight* from = panel + block * depth.block / kElements<Weight> * kPanelWidth;
      for (std::int64_t column = 0; column < kPanelWidth; column += kVecs * kLanes) {
        Vec totals[kCount][kVecs] = {};
        for (std::int64_t k = 0; k < depth.block; k += kDepth) {
          add_tile(x_tiles + k, x_stride, from + k / kElements<Weight> * kPanelWidth + column,
                   min(depth.block - k, kDepth), totals);
        }
        float* to = (kHasScales<Scales> ? scratch->partial : scratch->sums) + column;
        TL_ISA::store_sums(totals, to, kPanelWidth);
      }
      if constexpr (kHasScales<Scales>) scale_block(block, scratch->partial, 0, kCount);
    }
  }

  // scratch->sums = x * panel.
  TL_INLINE void run() const {
    const FlushSubnormals flush;
    if (x.are_few()) {
      if constexpr (kHasScales<Scales>) {
        for (std::int64_t i = 0; i < rows * kPanelWidth; i += kLanes) store(scratch->sums + i, zero());
      }
      switch (rows) {
        case 1:
          return multiply_few<1>();
        case 2:
          return multiply_few<2>();
        case 3:
          return multiply_few<3>();
        default:
          return multiply_few<4>();
      }
    }
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
          scale_block(block, scratch->partial + row * kPanelWidth, row, num_rows);
        });
      }
    }
  }
};

// As the bands of panel_gemm.h, of whole tiles.
TL_INLINE Bands make_bands(std::int64_t rows, std::int64_t panels, int num_threads) {
  const std::int64_t fewest = ceil_div(rows, kMaxTaskRows);
  const std::int64_t wanted = ceil_div(kTasksPerThread * num_threads, panels);
  const std::int64_t count = max(fewest, min(wanted, rows / kMinTaskRows));
  const std::int64_t band = ceil_div(ceil_div(rows, count), kRows) * kRows;
  return {ceil_div(rows, band), band};
}

TL_INLINE Plain scales_of(const PackedWeight&, std::int64_t, const Depth&, Plain) { return {}; }
TL_INLINE Scaled scales_of(const PackedWeight& w, std::int64_t panel, const Depth& depth, Scaled) {
  return {.scale = block_rows(w.scale, panel),
          .offset = block_rows(w.offset, panel),
          .block = depth.block,
          .x_blocks = depth.blocks};
}

template <typename Weight, typename Scales, typename Epilogue>
void multiply_rounded(const RoundedRows& x, const PackedWeight& w, const Depth& depth, std::int64_t panels,
                      ThreadPool* pool, const Epilogue& epilogue) {
  const auto* weight = w.weight.as<const Weight>();
  const std::int64_t items = depth.blocks * depth.block / kElements<Weight> * kPanelWidth;
  const Bands bands = make_bands(x.rows, panels, pool->num_threads());
  pool->parallel_for(panels * bands.count, [&](std::int64_t task, int thread) {
    const std::int64_t panel = task / bands.count, first = task % bands.count * bands.rows;
    const std::int64_t rows = min(bands.rows, x.rows - first);
    auto* scratch = static_cast<Scratch*>(pool->scratch(thread));
    Task<Weight, Scales>{x, depth, weight + panel * items, scales_of(w, panel, depth, Scales{}), first, rows, scratch}
        .run();
    for (std::int64_t r = 0; r < rows; ++r) epilogue(scratch->sums + r * kPanelWidth, first + r, panel);
  });
}

template <typename Weight, typename Scales, typename Epilogue>
void multiply_weight(const Tensor& x, const PackedWeight& w, std::int64_t panels, ThreadPool* pool,
                     const Epilogue& epilogue) {
  const Depth depth = depth_of(x, w);
  const std::int64_t at_once = static_cast<std::int64_t>(kSharedScratchBytes) / row_tile_bytes(depth) * kRows;
  auto* tiles = static_cast<BFloat16*>(pool->shared_scratch());
  for (std::int64_t begin = 0; begin < x.shape[0]; begin += at_once) {
    const std::int64_t rows = min(at_once, x.shape[0] - begin);
    auto* sums = reinterpret_cast<float*>(tiles + ceil_div(rows, kRows) * depth.all_tiles() * kElementsOfX);
    const RoundedRows rounded{tiles, sums, rows};
    round_rows<Weight>(x.as<const float>() + begin * x.shape[1], depth, rounded, pool);
    multiply_rounded<Weight, Scales>(
        rounded, w, depth, panels, pool,
        [&](const float* totals, std::int64_t row, std::int64_t panel) { epilogue(totals, begin + row, panel); });
  }
}

// Calls epilogue(sums of 64 features, row, panel) for all rows and panels.
template <typename Epilogue>
void multiply_panels(const Tensor& x, const PackedWeight& w, std::int64_t panels, ThreadPool* pool,
                     const Epilogue& epilogue) {
  switch (w.weight.dtype) {
    case DType::kInt8:
      return multiply_weight<std::int8_t, Scaled>(x, w, panels, pool, epilogue);
    case DType::kFloat8E4m3fn:
      return multiply_weight<Float8E4m3, Scaled>(x, w, panels, pool, epilogue);
    case DType::kInt4:
      return multiply_weight<Int4Word, Scaled>(x, w, panels, pool, epilogue);
    case DType::kUint4:
      return multiply_weight<UInt4Word, Scaled>(x, w, panels, pool, epilogue);
    case DType::kFloat4E2m1fn:
      return multiply_weight<Float4Word, Scaled>(x, w, panels, pool, epilogue);
    default:
      return multiply_weight<BFloat16, Plain>(x, w, panels, pool, epilogue);
  }
}

}  // namespace tl::TL_ISA::tiles
