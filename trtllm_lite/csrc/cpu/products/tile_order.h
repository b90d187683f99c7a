// A few rows times panels by vector instructions, with results bit-equal to those of tiles (tiles.h). Memory is the
// limit, and elements are dequantized in registers as panels are streamed.
//
// A task has several panels side by side and prefetches lines of each in turn (streams.h).
#pragma once

#include "cpu/products/panel_gemm.h"
#include "cpu/products/rounded_rows.h"
#include "cpu/products/tiles.h"
#include "cpu/simd/bf16_pairs.h"
#include "cpu/simd/fixed_point.h"
#include "cpu/streams.h"

namespace tl::TL_ISA::tiles {

// Tiles treat subnormal numbers as zero. While this object lives, the vectors of this thread do so too.
class FlushSubnormals {
 public:
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned saved_;
};

// The products of kCount x 32 of x and 32 x (kVecs vectors) of w, in two chains each, as in tiles.
template <int kCount, int kVecs>
struct Chains {
  Vec even[kCount][kVecs] = {};
  Vec odd[kCount][kVecs] = {};

  TL_INLINE void add_to(Vec (&totals)[kCount][kVecs]) const {
    for (int r = 0; r < kCount; ++r) {
      for (int v = 0; v < kVecs; ++v) totals[r][v] = totals[r][v] + (even[r][v] + odd[r][v]);
    }
  }
};

template <int kCount, int kVecs>
TL_INLINE void add_pair(const float* x, std::int64_t x_stride, const Vec (&first)[kVecs], const Vec (&second)[kVecs],
                        Chains<kCount, kVecs>* chains) {
  for (int r = 0; r < kCount; ++r) {
    const Vec even = broadcast(x[r * x_stride]), odd = broadcast(x[r * x_stride + kDepth / 2]);
    for (int v = 0; v < kVecs; ++v) {
      chains->even[r][v] = fma(even, first[v], chains->even[r][v]);
      chains->odd[r][v] = fma(odd, second[v], chains->odd[r][v]);
    }
  }
}

template <int kIndex, int kCount, int kVecs, typename Item>
TL_INLINE void add_pairs_of_words(const float* x, std::int64_t x_stride, const Item (&items)[kVecs],
                                  Chains<kCount, kVecs>* chains) {
  Vec first[kVecs], second[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    first[v] = element<kIndex>(items[v]);
    second[v] = element<kIndex + 4>(items[v]);
  }
  add_pair(x + kIndex, x_stride, first, second, chains);
  if constexpr (kIndex < 3) add_pairs_of_words<kIndex + 1>(x, x_stride, items, chains);
}

// totals += x * w for one tile of x, which has `depth` elements of k; items of w count without their factor
// (load_item()). A tile of x has the first elements of its 16 pairs, then the second ones, as float32. kLines lines are
// prefetched for each row of w.
template <int kLines, int kCount, int kVecs, typename Weight>
TL_INLINE void add_tile(const float* x, std::int64_t x_stride, const Weight* w, std::int64_t depth, Streams* streams,
                        Vec (&totals)[kCount][kVecs]) {
  Chains<kCount, kVecs> chains;
  if constexpr (kElements<Weight> == 8) {
    for (std::int64_t word = 0; word < depth / 8; ++word, w += kPanelWidth) {
      for (int i = 0; i < kLines; ++i) streams->prefetch_line();
      decltype(load(w)) items[kVecs];
      for (int v = 0; v < kVecs; ++v) items[v] = load(w + v * kLanes);
      add_pairs_of_words<0>(x + 4 * word, x_stride, items, &chains);
    }
  } else {
    for (std::int64_t k = 0; k < depth; k += 2, w += 2 * kPanelWidth) {
      for (int i = 0; i < 2 * kLines; ++i) streams->prefetch_line();
      Vec first[kVecs], second[kVecs];
      for (int v = 0; v < kVecs; ++v) {
        first[v] = load_item(w + v * kLanes);
        second[v] = k + 1 < depth ? load_item(w + kPanelWidth + v * kLanes) : zero();
      }
      add_pair(x + k / 2, x_stride, first, second, &chains);
    }
  }
  chains.add_to(totals);
}

template <int kCount, int kVecs>
TL_INLINE void multiply_all(Vec (&totals)[kCount][kVecs], float factor) {
  for (int r = 0; r < kCount; ++r) {
    for (int v = 0; v < kVecs; ++v) totals[r][v] = totals[r][v] * broadcast(factor);
  }
}

// A task: kCount rows of x times `panels` panels from number `first` on. Its sums are [panels][kCount][64]; if w has
// scales, those of the current block are in `partial`.
template <typename Weight, typename Scales, int kCount>
struct TaskOfFew {
  const RoundedRows& x;
  const Depth& depth;
  const PackedWeight& w;
  std::int64_t first;
  std::int64_t panels;
  float* sums;
  float* partial;

  static constexpr int kVecs = kCount <= 2 ? 4 : 2;  // enough chains to hide the latency of sums, few enough for the
                                                     // registers

  TL_INLINE std::int64_t items_of_panel() const { return depth.blocks * depth.block / kElements<Weight> * kPanelWidth; }

  // to += a tile of x, which begins at element `k` of `block`, times `from`. The first tile of a block sets `to`, and
  // the last one multiplies it by the factor of the items.
  template <int kLines>
  TL_INLINE void multiply_tile(std::int64_t block, std::int64_t k, const Weight* from, float* to,
                               Streams* streams) const {
    const std::int64_t x_stride = depth.all_tiles() * kDepth;
    Vec totals[kCount][kVecs] = {};
    if (k > 0) TL_ISA::load_sums(to, kPanelWidth, totals);
    const float* tile = x.floats(0, depth) + block * depth.tiles * kDepth + k;
    add_tile<kLines>(tile, x_stride, from, min(depth.block - k, kDepth), streams, totals);
    if (kItemFactor<Weight> != 1.0f && k + kDepth >= depth.block) multiply_all(totals, kItemFactor<Weight>);
    TL_ISA::store_sums(totals, to, kPanelWidth);
  }

  TL_INLINE void multiply_floats(std::int64_t block, const Weight* weight, float* to, Streams* streams) const {
    for (std::int64_t k = 0; k < depth.block; k += kDepth) {
      const Weight* from = weight + (block * depth.block + k) / kElements<Weight> * kPanelWidth;
      for (std::int64_t panel = 0; panel < panels; ++panel, from += items_of_panel()) {
        float* of_panel = to + panel * kCount * kPanelWidth;
        multiply_tile<kPanelLines<Weight>>(block, k, from, of_panel, streams);
        for (int column = kVecs * kLanes; column < kPanelWidth; column += kVecs * kLanes) {
          multiply_tile<0>(block, k, from + column, of_panel + column, streams);
        }
      }
    }
  }

  // to = a block of fixed-point x times the columns of one panel from `from` on.
  template <int kLines>
  TL_INLINE void multiply_columns(std::int64_t block, const Weight* from, float* to, Streams* streams) const {
    const std::int32_t* bytes = x.bytes(0, depth) + block * depth.tiles * kWordsOfTile;
    FixedSums<Weight, kCount, kVecs> products;
    for (std::int64_t word = 0; word < depth.block / 8; ++word, from += kPanelWidth, bytes += kWordsOfTile / 4) {
      for (int i = 0; i < kLines; ++i) streams->prefetch_line();
      Words<Weight> words[kVecs];
      for (int v = 0; v < kVecs; ++v) words[v] = load(from + v * kLanes);
      products.add(bytes, depth.blocks * depth.tiles * kWordsOfTile, words);
    }
    for (int r = 0; r < kCount; ++r) {
      const float x_sum = x.sums[r * depth.blocks + block];
      for (int v = 0; v < kVecs; ++v) store(to + r * kPanelWidth + v * kLanes, products.total(r, v, x_sum));
    }
  }

  TL_INLINE void multiply_fixed(std::int64_t block, const Weight* weight, float* to, Streams* streams) const {
    const Weight* from = weight + block * depth.block / kElements<Weight> * kPanelWidth;
    for (std::int64_t panel = 0; panel < panels; ++panel, from += items_of_panel(), to += kCount * kPanelWidth) {
      multiply_columns<kPanelLines<Weight>>(block, from, to, streams);
      for (int column = kVecs * kLanes; column < kPanelWidth; column += kVecs * kLanes) {
        multiply_columns<0>(block, from + column, to + column, streams);
      }
    }
  }

  TL_INLINE void multiply_block(std::int64_t block, const Weight* weight, float* to, Streams* streams) const {
    if constexpr (kElements<Weight> == 8) {
      if (depth.is_fixed()) return multiply_fixed(block, weight, to, streams);
    }
    multiply_floats(block, weight, to, streams);
  }

  TL_INLINE void run() const {
    const FlushSubnormals flush;
    const Weight* weight = w.weight.as<const Weight>() + first * items_of_panel();
    Streams streams(weight, items_of_panel() * static_cast<std::int64_t>(sizeof(Weight)), panels);
    const std::int64_t lines = min(depth.block, kDepth) / kElements<Weight> * kPanelLines<Weight>;
    for (std::int64_t line = 0; line < panels * lines; ++line) streams.prefetch_line();
    if constexpr (!kHasScales<Scales>) {
      multiply_floats(0, weight, sums, &streams);
    } else {
      const std::int64_t size = kCount * kPanelWidth;
      for (std::int64_t i = 0; i < panels * size; i += kLanes) store(sums + i, zero());
      for (std::int64_t block = 0; block < depth.blocks; ++block) {
        multiply_block(block, weight, partial, &streams);
        for (std::int64_t panel = 0; panel < panels; ++panel) {
          const Scales scales = scales_of(w, first + panel, depth, Scales{});
          add_scaled<1>(scales, block, partial + panel * size, 0, kCount, x.sums, x.scales, sums + panel * size);
        }
      }
    }
  }
};

}  // namespace tl::TL_ISA::tiles
