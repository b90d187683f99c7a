// What kernels of products of at most 16 rows have in common.
//
// What is done with a tile is an Op (see plugins/linear/cuda.cuh); a WalkOf it (cuda/weight_walk.cuh) may stand for its
// kTiles, first_row() and num_rows():
//   kTiles                          number of 16-row tiles
//   const void* weight              row-major rows of kIn elements
//   BlockNumbers numbers            scales and offsets of their blocks, if they have any
//   u64 first_row(tile, h)          number of the first of the tile's rows 8h..8h+7 (h in 0..1), neighbours
//   int num_rows(tile, h)           how many of those exist (8, but at the end of the weights)
//   Begun begin(tile, f, m)         loads what store() needs, early enough to hide the latency
//   store(tile, f, m, a, b, begun)  results of rows f and f + 8 (f in 0..7) for token m, scaled
#pragma once

#include "cuda/types.cuh"

namespace tl {

// x [rows, kIn], of 16-bit elements, which become bytes where weights are multiplied with such: with the scale `scale`,
// or, with TL_ROW_SCALES, with a scale for each row of at least that.
struct StreamedRows {
  const u16* rows;
  float scale;
};

// What an Op loads for two results before they are there: the scales of their rows of bytes, and two numbers of its
// own.
struct Begun {
  float x, y;
  float scale_a, scale_b;
};

}  // namespace tl
