#include "media/cut_patches.h"

#include <cstring>
#include <type_traits>
#include <vector>

namespace tl {
namespace {

// Splits pixels into their channels, [3, count].
[[gnu::always_inline]] inline void split(const std::uint8_t* __restrict pixels, std::ptrdiff_t count,
                                         std::uint8_t* __restrict channels) {
  std::uint8_t* __restrict green = channels + count;
  std::uint8_t* __restrict blue = green + count;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    channels[i] = pixels[3 * i];
    green[i] = pixels[3 * i + 1];
    blue[i] = pixels[3 * i + 2];
  }
}

// Side is an int, or a constant, for which copies need no calls.
template <typename Side>
[[gnu::always_inline]] inline void cut(const std::uint8_t* tile, std::ptrdiff_t row_bytes, int rows, int columns,
                                       Side side, int merge, std::uint8_t* patches) {
  const std::ptrdiff_t width = std::ptrdiff_t{columns} * side;
  const std::ptrdiff_t plane = std::ptrdiff_t{side} * side;
  std::vector<std::uint8_t> channels(3 * width);
  for (std::ptrdiff_t row = 0; row < rows; ++row) {
    const std::ptrdiff_t first = row / merge * columns * merge + row % merge * merge;
    for (std::ptrdiff_t y = 0; y < side; ++y) {
      split(tile + (row * side + y) * row_bytes, width, channels.data());
      for (std::ptrdiff_t column = 0; column < columns; ++column) {
        std::uint8_t* patch = patches + (first + column / merge * merge * merge + column % merge) * 3 * plane;
        for (int channel = 0; channel < 3; ++channel) {
          std::memcpy(patch + channel * plane + y * side, channels.data() + channel * width + column * side, side);
        }
      }
    }
  }
}

[[gnu::always_inline]] inline void cut_any(const std::uint8_t* tile, std::ptrdiff_t row_bytes, int rows, int columns,
                                           int side, int merge, std::uint8_t* patches) {
  switch (side) {
    case 14:
      return cut(tile, row_bytes, rows, columns, std::integral_constant<int, 14>(), merge, patches);
    case 16:
      return cut(tile, row_bytes, rows, columns, std::integral_constant<int, 16>(), merge, patches);
    default:
      return cut(tile, row_bytes, rows, columns, side, merge, patches);
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void cut_avx2(const std::uint8_t* tile, std::ptrdiff_t row_bytes, int rows, int columns,
                                      int side, int merge, std::uint8_t* patches) {
  cut_any(tile, row_bytes, rows, columns, side, merge, patches);
}
#endif

}  // namespace

void cut_patches(const std::uint8_t* tile, std::ptrdiff_t row_bytes, int rows, int columns, int side, int merge,
                 std::uint8_t* patches) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return cut_avx2(tile, row_bytes, rows, columns, side, merge, patches);
#endif
  cut_any(tile, row_bytes, rows, columns, side, merge, patches);
}

}  // namespace tl
