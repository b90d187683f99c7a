// Rows of x rounded to bfloat16 for tiles (tiles.h), and how in_features are cut into tiles.
#pragma once

#include <cstdint>

#include "cpu/bf16_pairs.h"
#include "cpu/panel_gemm.h"
#include "cpu/thread_pool.h"
#include "cpu/tiles.h"

namespace tl::TL_ISA::tiles {

// As many rows at most are multiplied in vectors.
constexpr int kFewRows = 4;

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

TL_INLINE Plain scales_of(const PackedWeight&, std::int64_t, const Depth&, Plain) { return {}; }
TL_INLINE Scaled scales_of(const PackedWeight& w, std::int64_t panel, const Depth& depth, Scaled) {
  return {.scale = block_rows(w.scale, panel),
          .offset = block_rows(w.offset, panel),
          .block = depth.block,
          .x_blocks = depth.blocks};
}

}  // namespace tl::TL_ISA::tiles
