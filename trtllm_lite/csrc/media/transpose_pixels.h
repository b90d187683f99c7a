// Transposes matrices of RGB pixels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tl {

// Beyond the last pixel of each of its rows, `to` has room for this many bytes, which are overwritten.
constexpr std::ptrdiff_t kRoom = 4;

// Pixel x of row y of `from` becomes pixel y of row x of `to`; rows begin after the given numbers of bytes. Nothing may
// follow the last pixel of a row of `from`, unless `has_room`: kRoom bytes are read there.
void transpose_pixels(const std::uint8_t* from, std::ptrdiff_t from_row_bytes, int rows, int columns, bool has_room,
                      std::uint8_t* to, std::ptrdiff_t to_row_bytes);

}  // namespace tl
