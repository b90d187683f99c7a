// What kernels of products of at most 16 rows have in common.
//
// An Op says what happens to a tile (see plugins/linear/cuda.cuh); a specialisation of WalkOf (cuda/weight_walk.cuh)
// may replace its kTiles, first_row() and num_rows():
//   kTiles                          number of 16-row tiles
//   const void* weight              row-major rows of kIn elements
//   BlockNumbers numbers            scales and offsets of their blocks, if any
//   u64 first_row(tile, h)          the first of the tile's contiguous rows 8h..8h+7 (h in 0..1)
//   int num_rows(tile, h)           how many of those exist (8, except at the end of the weights)
//   Begun begin(tile, f, m)         loads what store() needs, early enough to hide the latency
//   store(tile, f, m, a, b, begun)  stores the scaled results of rows f and f + 8 (f in 0..7) for token m
#pragma once

#include "cuda/types.cuh"

namespace tl {

// x [rows, kIn] in 16-bit elements. If weights are multiplied by rows of bytes, x is quantized: with the one scale
// `scale` or, with TL_ROW_SCALES, with a scale of its own for each row, which is at least `scale`.
struct StreamedRows {
  const u16* rows;
  float scale;
};

// What an Op loads for two results before they are computed: the scales of their rows of bytes, and two numbers of the
// Op's own.
struct Begun {
  float x, y;
  float scale_a, scale_b;
};

}  // namespace tl
