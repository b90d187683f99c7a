// The register-blocked inner loop under every matrix product: sums[r][c] += x[r][k] * w[k][c].
//
// Lanes lie along c and k runs in increasing order, one fma per element, so that an element's value depends on its own
// row and column alone, whatever tile it falls into. Where w has scales, the products of a block of k are summed before
// they are scaled, and x is summed over the block for the offset, so that elements are used as they are stored.
#pragma once

#include <cstdint>

#include "cpu/kernel.h"
#include "cpu/simd/simd.h"
#include "cpu/streams.h"

namespace tl::TL_ISA {

constexpr int kMaxTileRows = 6;
constexpr int kMaxTileVecs = 8;

// Scales or offsets for each block of k and each column: a float type, with `row_bytes` between blocks.
struct BlockRows {
  const char* first = nullptr;  // null if there are none
  std::int64_t row_bytes = 0;
  DType dtype = DType::kFloat32;

  TL_INLINE Vec load_at(std::int64_t block, std::int64_t column) const {
    const char* row = first + block * row_bytes;
    switch (dtype) {
      case DType::kBFloat16:
        return load(reinterpret_cast<const BFloat16*>(row) + column);
      case DType::kFloat16:
        return load(reinterpret_cast<const Float16*>(row) + column);
      default:
        return load(reinterpret_cast<const float*>(row) + column);
    }
  }
};

// The elements of w are the weights.
struct Plain {};
struct Scaled;
template <typename Scales>
constexpr bool kHasScales = false;
template <>
inline constexpr bool kHasScales<Scaled> = true;

// The weights are scale * element + offset; row b of `scale` and `offset` is for block b of k. A product covers whole
// blocks, or a part of one block whose sums so far are in `partial`.
struct Scaled {
  BlockRows scale;
  BlockRows offset;
  std::int64_t block;             // elements of k in a block
  const float* x_sums = nullptr;  // [rows][blocks]: x summed over the block; for offsets
  std::int64_t x_blocks = 0;      // stride of x_sums
  float* partial = nullptr;       // null: whole blocks; strides as for `sums`
  bool begins = true;             // whether this is the first part of its block
  bool ends = true;               // whether this is the last part of its block
  std::int64_t column = 0;        // the first column of the product

  TL_INLINE void skip_blocks(std::int64_t count) {
    scale.first += count * scale.row_bytes;
    if (offset.first == nullptr) return;
    offset.first += count * offset.row_bytes;
    x_sums += count;
  }
};

// The operands of a product of `rows` x `depth` by `depth` x `columns`, with strides in stored items. Rows of `sums`
// are padded to whole vectors.
template <typename Weight, typename Scales = Plain>
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
  Scales scales = {};

  TL_INLINE void skip_columns(std::int64_t count) {
    w += count;
    sums += count;
    columns -= count;
    if constexpr (kHasScales<Scales>) {
      scales.column += count;
      if (scales.partial != nullptr) scales.partial += count;
    }
  }

  // Scales are counted in blocks, so they are skipped separately.
  TL_INLINE void skip_depth(std::int64_t count) {
    x += count;
    w += count / kElements<Weight> * w_stride;
  }

  TL_INLINE void skip_rows(std::int64_t count) {
    x += count * x_stride;
    sums += count * sums_stride;
    if constexpr (kHasScales<Scales>) {
      if (scales.offset.first != nullptr) scales.x_sums += count * scales.x_blocks;
      if (scales.partial != nullptr) scales.partial += count * sums_stride;
    }
  }
};

// Vectors of columns in a tile of `rows` rows: as many as keep all sums in registers, at most `most`.
constexpr int tile_vecs(int rows, int most) {
  int vecs = most;
  while (vecs > 1 && rows * vecs > kMaxAccumulators) vecs /= 2;
  return vecs;
}

// Row tiles are as even as possible: 8 rows are 4 + 4, not 6 + 2.
TL_INLINE std::int64_t tile_rows(std::int64_t rows) {
  return rows <= kMaxTileRows ? rows : ceil_div(rows, ceil_div(rows, kMaxTileRows));
}

// Memory that is read next; its lines are prefetched while multiplying.
struct Prefetch {
  Streams streams;
  std::int64_t lines = 0;
};

// sums += x * w for `depth` elements of k, from element kIndex of the items on.
template <int kIndex, int kRows, int kVecs, typename Item>
TL_INLINE void add_products(const float* x, std::int64_t x_stride, const Item (&items)[kVecs],
                            Vec (&sums)[kRows][kVecs]) {
  Vec columns[kVecs];
  for (int v = 0; v < kVecs; ++v) columns[v] = element<kIndex>(items[v]);
  for (int r = 0; r < kRows; ++r) {
    const Vec factor = broadcast(x[r * x_stride + kIndex]);
    for (int v = 0; v < kVecs; ++v) sums[r][v] = fma(factor, columns[v], sums[r][v]);
  }
}

template <int kIndex, int kCount, int kRows, int kVecs, typename Item>
TL_INLINE void add_all_products(const float* x, std::int64_t x_stride, const Item (&items)[kVecs],
                                Vec (&sums)[kRows][kVecs]) {
  add_products<kIndex>(x, x_stride, items, sums);
  if constexpr (kIndex + 1 < kCount) add_all_products<kIndex + 1, kCount>(x, x_stride, items, sums);
}

// sums += x * w of p from depth `from` to `to`.
template <bool kPartial, int kLines, int kRows, int kVecs, typename Weight, typename Scales>
TL_INLINE void add_rows(const Product<Weight, Scales>& p, std::int64_t from, std::int64_t to, Streams* streams,
                        Vec (&sums)[kRows][kVecs]) {
  using Item = decltype(load_item(p.w));
  for (std::int64_t k = from / kElements<Weight>; k < to / kElements<Weight>; ++k) {
    for (int i = 0; i < kLines; ++i) streams->prefetch_line();
    const Weight* w = p.w + k * p.w_stride;
    Item items[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      if constexpr (kPartial) {
        items[v] = load_first(w, p.columns);
      } else {
        items[v] = load_item(w + v * kLanes);
      }
    }
    add_all_products<0, kElements<Weight>>(p.x + k * kElements<Weight>, p.x_stride, items, sums);
  }
}

template <int kRows, int kVecs>
TL_INLINE void load_sums(const float* from, std::int64_t stride, Vec (&sums)[kRows][kVecs]) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) sums[r][v] = load(from + r * stride + v * kLanes);
  }
}

template <int kRows, int kVecs>
TL_INLINE void store_sums(const Vec (&sums)[kRows][kVecs], float* to, std::int64_t stride) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) store(to + r * stride + v * kLanes, sums[r][v]);
  }
}

// p.sums += scale * sums + offset * x_sums, for one block.
template <int kRows, int kVecs, typename Weight>
TL_INLINE void add_scaled(const Product<Weight, Scaled>& p, std::int64_t block, const Vec (&sums)[kRows][kVecs]) {
  const Scaled& scales = p.scales;
  for (int v = 0; v < kVecs; ++v) {
    const std::int64_t column = scales.column + v * kLanes;
    const Vec scale = scales.scale.load_at(block, column) * broadcast(kItemFactor<Weight>);
    const bool has_offset = scales.offset.first != nullptr;
    const Vec offset = has_offset ? scales.offset.load_at(block, column) : zero();
    for (int r = 0; r < kRows; ++r) {
      float* to = p.sums + r * p.sums_stride + v * kLanes;
      Vec sum = fma(sums[r][v], scale, load(to));
      if (has_offset) sum = fma(broadcast(scales.x_sums[r * scales.x_blocks + block]), offset, sum);
      store(to, sum);
    }
  }
}

// One tile of kRows x (kVecs * kLanes) at the origin of p. kPartial: only p.columns < kLanes columns exist.
template <int kRows, int kVecs, bool kPartial, int kLines, typename Weight>
TL_INLINE void multiply_tile(const Product<Weight>& p, Streams* streams) {
  Vec sums[kRows][kVecs];
  load_sums(p.sums, p.sums_stride, sums);
  add_rows<kPartial, kLines>(p, 0, p.depth, streams, sums);
  store_sums(sums, p.sums, p.sums_stride);
}

template <int kRows, int kVecs, bool kPartial, int kLines, typename Weight>
TL_INLINE void multiply_tile(const Product<Weight, Scaled>& p, Streams* streams) {
  const Scaled& scales = p.scales;
  const std::int64_t step = scales.partial == nullptr ? scales.block : p.depth;
  for (std::int64_t from = 0, block = 0; from < p.depth; from += step, ++block) {
    Vec sums[kRows][kVecs] = {};
    if (!scales.begins) load_sums(scales.partial, p.sums_stride, sums);
    add_rows<kPartial, kLines>(p, from, from + step, streams, sums);
    if (scales.ends) {
      add_scaled(p, block, sums);
    } else {
      store_sums(sums, scales.partial, p.sums_stride);
    }
  }
}

// Computes the tile, and prefetches kLines lines for each item until `prefetch` is used up.
template <int kRows, int kVecs, bool kPartial, int kLines, typename Weight, typename Scales>
TL_INLINE void multiply_tile_and_prefetch(const Product<Weight, Scales>& p, Prefetch* prefetch) {
  if constexpr (kLines > 0) {
    if (prefetch->lines > 0) {
      multiply_tile<kRows, kVecs, kPartial, kLines>(p, &prefetch->streams);
      prefetch->lines -= p.depth / kElements<Weight> * kLines;
      return;
    }
  }
  multiply_tile<kRows, kVecs, kPartial, 0>(p, nullptr);
}

// Multiplies kRows rows by all columns, in tiles of kVecs vectors, then in narrower ones for remaining columns (unless
// kWhole).
template <int kRows, int kVecs, bool kWhole, int kLines, typename Weight, typename Scales>
TL_INLINE void multiply_row_tile(Product<Weight, Scales> p, Prefetch* prefetch) {
  while (p.columns >= kVecs * kLanes) {
    multiply_tile_and_prefetch<kRows, kVecs, false, kLines>(p, prefetch);
    p.skip_columns(kVecs * kLanes);
  }
  if constexpr (!kWhole) {
    if (p.columns == 0) return;
    if constexpr (kVecs > 1) {
      multiply_row_tile<kRows, kVecs / 2, false, kLines>(p, prefetch);
    } else {
      multiply_tile_and_prefetch<kRows, 1, true, kLines>(p, prefetch);
    }
  }
}

// Picks the tile for `rows` <= kRows at run time.
template <int kRows, int kColumns, int kLines, typename Weight, typename Scales>
TL_INLINE void multiply_up_to(const Product<Weight, Scales>& p, std::int64_t rows, Prefetch* prefetch) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return multiply_up_to<kRows - 1, kColumns, kLines>(p, rows, prefetch);
  }
  constexpr int kMost = kColumns > 0 && kColumns < kMaxTileVecs * kLanes ? kColumns / kLanes : kMaxTileVecs;
  constexpr int kVecs = tile_vecs(kRows, kMost);
  multiply_row_tile<kRows, kVecs, kColumns != 0 && kColumns % (kVecs * kLanes) == 0, kLines>(p, prefetch);
}

// p.sums += p.x * p.w. kColumns is p.columns if known at compile time, else 0; for plain float weights.
template <int kColumns, int kLines, typename Weight, typename Scales>
void multiply(Product<Weight, Scales> p, Prefetch* prefetch) {
  const std::int64_t step = tile_rows(p.rows);
  for (std::int64_t left = p.rows; left > 0; left -= step) {
    multiply_up_to<kMaxTileRows, kColumns, kLines>(p, min(left, step), prefetch);
    p.skip_rows(step);
  }
}

template <int kColumns, typename Weight, typename Scales>
void multiply(const Product<Weight, Scales>& p) {
  multiply<kColumns, 0>(p, nullptr);
}

// The most rows that a tile holds with kColumns columns; 0 if it cannot hold the columns.
template <int kColumns>
constexpr int rows_of_whole_tile() {
  int rows = kMaxTileRows;
  while (rows > 0 && tile_vecs(rows, kMaxTileVecs) * kLanes < kColumns) --rows;
  return rows;
}

// p.sums += p.x * p.w for at most kRows rows, in one tile of kColumns columns. Each item prefetches kLines lines.
template <int kRows, int kColumns, int kLines, typename Weight, typename Scales>
TL_INLINE void multiply_whole_tile(const Product<Weight, Scales>& p, Streams* streams) {
  if constexpr (kRows > 1) {
    if (p.rows < kRows) return multiply_whole_tile<kRows - 1, kColumns, kLines>(p, streams);
  }
  if constexpr (kRows > 0) multiply_tile<kRows, kColumns / kLanes, false, kLines>(p, streams);
}

}  // namespace tl::TL_ISA
