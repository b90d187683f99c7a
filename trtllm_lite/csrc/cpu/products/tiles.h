// AMX tiles: 16 rows of 64 bytes each. A product adds 16 x 32 of x times 32 x 16 of w, both bfloat16, to 16 x 16 sums.
//
// For element [r][c] of the sums, two chains of fused multiply-adds, over the even and the odd k, are added together
// and then to the element. It depends on row r and column c alone, so a row's bits do not depend on how many rows a
// tile has. Subnormal float32 numbers count as zero, also in x and w.
#pragma once

#include "cpu/simd/simd.h"

namespace tl::TL_ISA::tiles {

constexpr std::int64_t kRows = 16;
constexpr std::int64_t kColumns = 16;
constexpr std::int64_t kDepth = 32;
constexpr std::int64_t kElementsOfX = kRows * kDepth;

// The extents of the eight tile registers, in the format of LDTILECFG: 0 to 3 are sums of `rows` rows, 4 and 5 are x, 6
// and 7 are w.
struct alignas(64) Configuration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {};

  explicit Configuration(std::int64_t tile_rows) {
    for (int tile = 0; tile < 8; ++tile) rows[tile] = static_cast<std::uint8_t>(tile < 6 ? tile_rows : kRows);
  }
};

// Configures the tile registers of this thread, and releases them when the object is destroyed.
class Registers {
 public:
  explicit Registers(std::int64_t rows) {
    const Configuration configuration(rows);
    _tile_loadconfig(&configuration);
  }
  ~Registers() { _tile_release(); }
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;
};

// The compiler does not know that tiles are loaded from memory; this keeps it from moving earlier writes past the
// loads.
TL_INLINE void finish_writes() { asm volatile("" ::: "memory"); }

// The stride in bytes of sums of 16 rows and 64 columns.
constexpr std::int64_t kSumsRowBytes = 4 * kColumns * sizeof(float);
// The stride in bytes of rows of w: pairs of 64 columns.
constexpr std::int64_t kPairsRowBytes = 4 * kColumns * 2 * sizeof(BFloat16);

TL_INLINE void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

TL_INLINE void load_sums(const float* from) {
  _tile_loadd(0, from, kSumsRowBytes);
  _tile_loadd(1, from + kColumns, kSumsRowBytes);
  _tile_loadd(2, from + 2 * kColumns, kSumsRowBytes);
  _tile_loadd(3, from + 3 * kColumns, kSumsRowBytes);
}

TL_INLINE void store_sums(float* to) {
  _tile_stored(0, to, kSumsRowBytes);
  _tile_stored(1, to + kColumns, kSumsRowBytes);
  _tile_stored(2, to + 2 * kColumns, kSumsRowBytes);
  _tile_stored(3, to + 3 * kColumns, kSumsRowBytes);
}

// sums += x * w, for `count` tiles of each plane of x in sequence and `count` times 16 rows of pairs of w, which are
// multiplied by every plane.
template <int kPlanes>
TL_INLINE void add_products(const BFloat16* x, const BFloat16* w, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i, x += kElementsOfX, w += kDepth * 4 * kColumns) {
    _tile_loadd(4, x, kDepth * sizeof(BFloat16));
    if constexpr (kPlanes == 2) _tile_loadd(5, x + count * kElementsOfX, kDepth * sizeof(BFloat16));
    _tile_loadd(6, w, kPairsRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kPlanes == 2) _tile_dpbf16ps(0, 5, 6);
    _tile_loadd(7, w + 2 * kColumns, kPairsRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kPlanes == 2) _tile_dpbf16ps(1, 5, 7);
    _tile_loadd(6, w + 4 * kColumns, kPairsRowBytes);
    _tile_dpbf16ps(2, 4, 6);
    if constexpr (kPlanes == 2) _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(7, w + 6 * kColumns, kPairsRowBytes);
    _tile_dpbf16ps(3, 4, 7);
    if constexpr (kPlanes == 2) _tile_dpbf16ps(3, 5, 7);
  }
}

}  // namespace tl::TL_ISA::tiles
