// The register-blocked inner loop under every matrix product: sums[r][c] += x[r][k] * w[k][c].
//
// Lanes lie along c and k runs in increasing order, one fma per element, so that an element's value depends on its own
// row and column alone, whatever tile it falls into.
#pragma once

#include <cstdint>

#include "cpu/simd.h"

namespace tl::TL_ISA {

constexpr int kMaxTileRows = 6;
constexpr int kMaxTileVecs = 8;

// The operands of a product of `rows` x `depth` by `depth` x `columns`; strides in elements. Rows of `sums` are padded
// to whole vectors.
template <typename Weight>
struct Product {
  const float* x;
  std::int64_t x_stride;
  const Weight* w;
  std::int64_t w_stride;
  float* sums;
  std::int64_t sums_stride;
  std::int64_t rows;
  std::int64_t depth;
  std::int64_t columns;
};

// Vectors of columns in a tile of `rows`: the most that keep every sum in a register.
constexpr int tile_vecs(int rows) {
  int vecs = kMaxTileVecs;
  while (vecs > 1 && rows * vecs > kMaxAccumulators) vecs /= 2;
  return vecs;
}

// Row tiles are as even as possible: 8 rows are 4 + 4, not 6 + 2.
TL_INLINE std::int64_t tile_rows(std::int64_t rows) {
  return rows <= kMaxTileRows ? rows : ceil_div(rows, ceil_div(rows, kMaxTileRows));
}

// The memory to prefetch while multiplying, which is read next. Step k of a tile prefetches the first lines of
// next + k * step.
struct Prefetch {
  const char* next = nullptr;
  const char* end = nullptr;
  std::int64_t step = 0;
};

constexpr int kLineBytes = 64;

// One tile of kRows x (kVecs * kLanes) at the origin of p. kPartial: only p.columns < kLanes columns exist.
template <int kRows, int kVecs, bool kPartial, int kLines, typename Weight>
TL_INLINE void multiply_tile(const Product<Weight>& p, const Prefetch& prefetch) {
  Vec sums[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) sums[r][v] = load(p.sums + r * p.sums_stride + v * kLanes);
  }
  const Weight* w = p.w;
  for (std::int64_t k = 0; k < p.depth; ++k, w += p.w_stride) {
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(prefetch.next + k * prefetch.step + i * kLineBytes);
    Vec columns[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      if constexpr (kPartial) {
        columns[v] = load_first(w, p.columns);
      } else {
        columns[v] = load(w + v * kLanes);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const Vec x = broadcast(p.x[r * p.x_stride + k]);
      for (int v = 0; v < kVecs; ++v) sums[r][v] = fma(x, columns[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) store(p.sums + r * p.sums_stride + v * kLanes, sums[r][v]);
  }
}

// Computes the tile, and prefetches kLines lines a step until `prefetch` is used up.
template <int kRows, int kVecs, bool kPartial, int kLines, typename Weight>
TL_INLINE void multiply_tile_and_prefetch(const Product<Weight>& p, Prefetch* prefetch) {
  if constexpr (kLines > 0) {
    if (prefetch->next < prefetch->end) {
      multiply_tile<kRows, kVecs, kPartial, kLines>(p, *prefetch);
      prefetch->next += p.depth * prefetch->step;
      return;
    }
  }
  multiply_tile<kRows, kVecs, kPartial, 0>(p, *prefetch);
}

// kRows rows by all columns: tiles of kVecs vectors while they fit, then narrower ones.
template <int kRows, int kVecs, int kLines, typename Weight>
TL_INLINE void multiply_row_tile(Product<Weight> p, Prefetch* prefetch) {
  for (; p.columns >= kVecs * kLanes; p.columns -= kVecs * kLanes) {
    multiply_tile_and_prefetch<kRows, kVecs, false, kLines>(p, prefetch);
    p.w += kVecs * kLanes;
    p.sums += kVecs * kLanes;
  }
  if (p.columns == 0) return;
  if constexpr (kVecs > 1) {
    multiply_row_tile<kRows, kVecs / 2, kLines>(p, prefetch);
  } else if constexpr (sizeof(Weight) == sizeof(float)) {
    multiply_tile_and_prefetch<kRows, 1, true, kLines>(p, prefetch);
  }
}

// Picks the tile for `rows` <= kRows at run time.
template <int kRows, int kLines, typename Weight>
TL_INLINE void multiply_up_to(const Product<Weight>& p, std::int64_t rows, Prefetch* prefetch) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return multiply_up_to<kRows - 1, kLines>(p, rows, prefetch);
  }
  multiply_row_tile<kRows, tile_vecs(kRows), kLines>(p, prefetch);
}

// p.sums += p.x * p.w. Columns that are no multiple of kLanes are for float weights only; panels never have them.
template <int kLines = 0, typename Weight>
void multiply(Product<Weight> p, Prefetch prefetch = {}) {
  const std::int64_t step = tile_rows(p.rows);
  for (std::int64_t left = p.rows; left > 0; left -= step) {
    multiply_up_to<kMaxTileRows, kLines>(p, min(left, step), &prefetch);
    p.x += step * p.x_stride;
    p.sums += step * p.sums_stride;
  }
}

}  // namespace tl::TL_ISA
