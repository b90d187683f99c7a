// Rows of x for tiles (tiles.h), in bfloat16 or fixed point, and the division of in_features into tiles.
#pragma once

#include <cstdint>

#include "cpu/products/panel_gemm.h"
#include "cpu/products/tiles.h"
#include "cpu/simd/bf16_pairs.h"
#include "cpu/simd/fixed_point.h"
#include "host/thread_pool.h"

namespace tl::TL_ISA::tiles {

// The most rows that are multiplied by vector instructions instead of tiles.
constexpr int kFewRows = 4;
// The bytes of 32 fixed-point numbers, in 32-bit words.
constexpr std::int64_t kWordsOfTile = 2 * kDepth / sizeof(std::int32_t);

// The division of in_features: `blocks` blocks of `block` elements, each padded to `tiles` tiles. Fixed-point x has two
// planes of tiles: the upper and the lower halves of its numbers.
struct Depth {
  std::int64_t blocks;
  std::int64_t block;
  std::int64_t tiles;
  std::int64_t planes;

  TL_INLINE bool is_fixed() const { return planes == 2; }
  TL_INLINE std::int64_t tiles_of_block() const { return tiles * planes; }
  TL_INLINE std::int64_t all_tiles() const { return blocks * tiles_of_block(); }
};

// Rows that are quantized already stay as they are, in bfloat16.
TL_INLINE Depth depth_of(std::int64_t in_features, const PackedWeight& w, bool is_quantized) {
  const std::int64_t blocks = w.scale.data == nullptr ? 1 : w.scale.shape[w.scale.rank - 1];
  const std::int64_t block = in_features / blocks;
  const bool has_words = w.weight.dtype == DType::kInt4 || w.weight.dtype == DType::kUint4;
  const bool is_fixed = has_words && !is_quantized && block <= kMaxFixedBlock;
  return {blocks, block, ceil_div(block, kDepth), is_fixed ? 2 : 1};
}

// Bytes of 16 rows of x in tiles, with their sums over blocks and their scales.
TL_INLINE std::int64_t row_tile_bytes(const Depth& depth) {
  return depth.all_tiles() * kElementsOfX * static_cast<std::int64_t>(sizeof(BFloat16)) +
         kRows * depth.planes * depth.blocks * static_cast<std::int64_t>(sizeof(float));
}

// Rows of x from number `begin` on, with their sums over blocks and the scales of blocks, both [rows][blocks]. Rows are
// stored in tiles [row tiles][all tiles][16][32]. A few rows are instead stored for tile_order.h: as float32 [rows][all
// tiles][32], or in fixed point as bytes [rows][blocks][tiles][64].
struct RoundedRows {
  BFloat16* tiles;
  float* sums;
  float* scales;  // null: not in fixed point
  std::int64_t begin;
  std::int64_t rows;

  TL_INLINE bool are_few() const { return rows <= kFewRows; }
  TL_INLINE float* floats(std::int64_t row, const Depth& depth) const {
    return reinterpret_cast<float*>(tiles) + row * depth.all_tiles() * kDepth;
  }

  TL_INLINE std::int32_t* bytes(std::int64_t row, const Depth& depth) const {
    return reinterpret_cast<std::int32_t*>(tiles) + row * depth.blocks * depth.tiles * kWordsOfTile;
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

template <typename Word>
TL_INLINE void fix_row(const float* x, std::int64_t row, const Depth& depth, const RoundedRows& to) {
  BFloat16* tile = to.row_tile(row, depth) + row % kRows * kDepth;
  std::int32_t* bytes = to.bytes(row, depth);
  const float largest = largest_fixed(depth.block);
  for (std::int64_t block = 0; block < depth.blocks; ++block, x += depth.block) {
    const FixedScale found = fixed_scale(x, depth.block, largest);
    __m512i sum = _mm512_setzero_si512();
    for (std::int64_t k = 0; k < depth.block; k += kDepth) {
      const Fixed numbers = to_fixed(x + k, depth.block - k, found.inverse);
      if (to.are_few()) {
        _mm512_store_si512(bytes, bytes_of(numbers));
        bytes += kWordsOfTile;
      } else {
        BFloat16* upper = tile + k / kDepth * kElementsOfX;
        store(upper, upper_pairs<Word>(numbers));
        store(upper + depth.tiles * kElementsOfX, lower_pairs<Word>(numbers));
      }
      sum = _mm512_add_epi32(sum, _mm512_add_epi32(numbers.first, numbers.second));
    }
    tile += depth.tiles_of_block() * kElementsOfX;
    to.sums[row * depth.blocks + block] = static_cast<float>(_mm512_reduce_add_epi32(sum));
    to.scales[row * depth.blocks + block] = found.scale;
  }
}

template <typename Weight>
TL_INLINE void round_rows(const float* x, const Depth& depth, const RoundedRows& to, ThreadPool* pool) {
  const std::int64_t width = depth.blocks * depth.block;
  const auto round_tile = [&](std::int64_t tile, int) {
    const std::int64_t last = min((tile + 1) * kRows, to.rows);
    for (std::int64_t row = tile * kRows; row < last; ++row) {
      if constexpr (kElements<Weight> == 8) {
        if (depth.is_fixed()) {
          fix_row<Weight>(x + row * width, row, depth, to);
          continue;
        }
      }
      round_row<Weight>(x + row * width, row, depth, to);
    }
  };
  if (to.rows <= kRows) {
    round_tile(0, 0);
  } else {
    pool->parallel_for(ceil_div(to.rows, kRows), round_tile);
  }
}

// sums += scale * products + offset * x_sums, for kBlocks blocks one after the other, in `rows` rows and 64
// columns. For fixed-point x, each term is multiplied by the scale of the row's block. `products` of blocks are
// `stride` floats apart; x_sums and x_scales are those of the first row.
template <int kBlocks>
TL_INLINE void add_scaled(const Scaled& scales, std::int64_t first, const float* products, std::int64_t stride,
                          std::int64_t rows, const float* x_sums, const float* x_scales, float* sums) {
  constexpr int kVecs = kPanelWidth / kLanes;
  const bool has_offset = scales.offset.first != nullptr;
  Vec scale[kBlocks][kVecs], offset[kBlocks][kVecs];
  for (int b = 0; b < kBlocks; ++b) {
    for (int v = 0; v < kVecs; ++v) {
      scale[b][v] = scales.scale.load_at(first + b, v * kLanes);
      offset[b][v] = has_offset ? scales.offset.load_at(first + b, v * kLanes) : zero();
    }
  }
  for (std::int64_t r = 0; r < rows; ++r, products += kPanelWidth, sums += kPanelWidth) {
    Vec totals[1][kVecs];
    TL_ISA::load_sums(sums, kPanelWidth, totals);
    for (int b = 0; b < kBlocks; ++b) {
      const std::int64_t place = r * scales.x_blocks + first + b;
      const Vec x_sum = broadcast(has_offset ? x_sums[place] : 0.0f);
      const Vec x_scale = broadcast(x_scales != nullptr ? x_scales[place] : 1.0f);
      for (int v = 0; v < kVecs; ++v) {
        Vec product = load(products + b * stride + v * kLanes) * scale[b][v];
        if (has_offset) product = fma(x_sum, offset[b][v], product);
        totals[0][v] = fma(product, x_scale, totals[0][v]);
      }
    }
    TL_ISA::store_sums(totals, sums, kPanelWidth);
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
