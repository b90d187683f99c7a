// A few rows times a panel in vectors, with the bits that tiles (tiles.h) give: memory is the limit then, and elements
// are widened in registers as the panel streams by.
#pragma once

#include "cpu/bf16_pairs.h"
#include "cpu/panel_gemm.h"
#include "cpu/tiles.h"

namespace tl::TL_ISA::tiles {

constexpr int kFewRows = 4;

// Tiles take numbers below the normal range for zero; while this lives, the vectors of this thread do, too.
class FlushSubnormals {
 public:
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned saved_;
};

// The products of kRows x 32 of x and 32 x (kVecs vectors) of w: two chains each, as tiles have them.
template <int kRows, int kVecs>
struct Chains {
  Vec even[kRows][kVecs] = {};
  Vec odd[kRows][kVecs] = {};

  TL_INLINE void add_to(Vec (&totals)[kRows][kVecs]) const {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) totals[r][v] = totals[r][v] + (even[r][v] + odd[r][v]);
    }
  }
};

template <int kRows, int kVecs>
TL_INLINE void add_pair(const float* x, std::int64_t x_stride, const Vec (&first)[kVecs], const Vec (&second)[kVecs],
                        Chains<kRows, kVecs>* chains) {
  for (int r = 0; r < kRows; ++r) {
    const Vec even = broadcast(x[r * x_stride]), odd = broadcast(x[r * x_stride + kDepth / 2]);
    for (int v = 0; v < kVecs; ++v) {
      chains->even[r][v] = fma(even, first[v], chains->even[r][v]);
      chains->odd[r][v] = fma(odd, second[v], chains->odd[r][v]);
    }
  }
}

template <int kIndex, int kRows, int kVecs, typename Item>
TL_INLINE void add_pairs_of_words(const float* x, std::int64_t x_stride, const Item (&items)[kVecs],
                                  Chains<kRows, kVecs>* chains) {
  Vec first[kVecs], second[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    first[v] = element<kIndex>(items[v]);
    second[v] = element<kIndex + 4>(items[v]);
  }
  add_pair(x + kIndex, x_stride, first, second, chains);
  if constexpr (kIndex < 3) add_pairs_of_words<kIndex + 1>(x, x_stride, items, chains);
}

// totals += x * w for one tile of x, of which `depth` elements of k are there. A tile of x has the first elements of
// its 16 pairs, then the second ones, as float32.
template <int kRows, int kVecs, typename Weight>
TL_INLINE void add_tile(const float* x, std::int64_t x_stride, const Weight* w, std::int64_t depth,
                        Vec (&totals)[kRows][kVecs]) {
  constexpr std::int64_t kAhead = kPrefetchBytes / sizeof(Weight);
  constexpr int kLines = ceil_div(kVecs * kLanes * sizeof(Weight), kLineBytes);
  Chains<kRows, kVecs> chains;
  const auto prefetch = [](const Weight* row) {
    for (int i = 0; i < kLines; ++i) {
      __builtin_prefetch(reinterpret_cast<const char*>(row + kAhead) + i * kLineBytes);
    }
  };
  if constexpr (kElements<Weight> == 8) {
    for (std::int64_t word = 0; word < depth / 8; ++word, w += kPanelWidth) {
      prefetch(w);
      decltype(load(w)) items[kVecs];
      for (int v = 0; v < kVecs; ++v) items[v] = load(w + v * kLanes);
      add_pairs_of_words<0>(x + 4 * word, x_stride, items, &chains);
    }
  } else {
    for (std::int64_t k = 0; k < depth; k += 2, w += 2 * kPanelWidth) {
      prefetch(w);
      prefetch(w + kPanelWidth);
      Vec first[kVecs], second[kVecs];
      for (int v = 0; v < kVecs; ++v) {
        first[v] = load(w + v * kLanes);
        second[v] = k + 1 < depth ? load(w + kPanelWidth + v * kLanes) : zero();
      }
      add_pair(x + k / 2, x_stride, first, second, &chains);
    }
  }
  chains.add_to(totals);
}

}  // namespace tl::TL_ISA::tiles
