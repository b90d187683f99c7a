#include "media/transpose_pixels.h"

#include <cstring>

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // a false alarm of GCC 12 inside its own header (GCC bug 105593)
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace tl {
namespace {

// Copies 4 bytes of each pixel, the last of which the next pixel overwrites. The functions here are not inlined where
// memory is allocated, or else each copy would be held against its size (-D_FORTIFY_SOURCE), which takes longer.
[[gnu::noinline]] void transpose_each(const std::uint8_t* from, std::ptrdiff_t from_row_bytes, int rows, int columns,
                                      bool has_room, std::uint8_t* to, std::ptrdiff_t to_row_bytes) {
  const int whole = has_room ? columns : columns - 1;
  for (int x = 0; x < whole; ++x) {
    for (int y = 0; y < rows; ++y) {
      std::memcpy(to + x * to_row_bytes + 3 * y, from + y * from_row_bytes + 3 * x, 4);
    }
  }
  for (int x = whole; x < columns; ++x) {
    for (int y = 0; y < rows; ++y) {
      std::memcpy(to + x * to_row_bytes + 3 * y, from + y * from_row_bytes + 3 * x, 3);
    }
  }
}

#if defined(__x86_64__)
// Four rows of four pixels, 12 bytes each, which 4 bytes of no meaning follow.
[[gnu::target("ssse3")]] inline void transpose_four(const std::uint8_t* from, std::ptrdiff_t from_row_bytes,
                                                    std::uint8_t* to, std::ptrdiff_t to_row_bytes) {
  const __m128i spread = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
  const __m128i dense = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  __m128i row[4];
  for (int y = 0; y < 4; ++y) {
    row[y] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + y * from_row_bytes)), spread);
  }
  const __m128i left = _mm_unpacklo_epi32(row[0], row[1]);
  const __m128i lower_left = _mm_unpacklo_epi32(row[2], row[3]);
  const __m128i right = _mm_unpackhi_epi32(row[0], row[1]);
  const __m128i lower_right = _mm_unpackhi_epi32(row[2], row[3]);
  const __m128i column[4] = {_mm_unpacklo_epi64(left, lower_left), _mm_unpackhi_epi64(left, lower_left),
                             _mm_unpacklo_epi64(right, lower_right), _mm_unpackhi_epi64(right, lower_right)};
  for (int x = 0; x < 4; ++x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + x * to_row_bytes), _mm_shuffle_epi8(column[x], dense));
  }
}

[[gnu::target("ssse3"), gnu::noinline]] void transpose_fours(const std::uint8_t* from, std::ptrdiff_t from_row_bytes,
                                                             int rows, int columns, bool has_room, std::uint8_t* to,
                                                             std::ptrdiff_t to_row_bytes) {
  const int needed = has_room ? 4 : 6;  // pixels for 16 bytes
  int y = 0;
  for (; y + 4 <= rows; y += 4) {
    const std::uint8_t* row = from + y * from_row_bytes;
    int x = 0;
    for (; x + needed <= columns; x += 4) {
      transpose_four(row + 3 * x, from_row_bytes, to + x * to_row_bytes + 3 * y, to_row_bytes);
    }
    transpose_each(row + 3 * x, from_row_bytes, 4, columns - x, has_room, to + x * to_row_bytes + 3 * y, to_row_bytes);
  }
  transpose_each(from + y * from_row_bytes, from_row_bytes, rows - y, columns, has_room, to + 3 * y, to_row_bytes);
}
#endif

}  // namespace

void transpose_pixels(const std::uint8_t* from, std::ptrdiff_t from_row_bytes, int rows, int columns, bool has_room,
                      std::uint8_t* to, std::ptrdiff_t to_row_bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("ssse3")) {
    return transpose_fours(from, from_row_bytes, rows, columns, has_room, to, to_row_bytes);
  }
#endif
  transpose_each(from, from_row_bytes, rows, columns, has_room, to, to_row_bytes);
}

}  // namespace tl
