// Cuts tiles of images into the patches that vision towers take.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tl {

// Writes the patches of side x side pixels of a tile of RGB pixels, each as [channel, row, column], one after the
// other. Groups of merge x merge patches are in row-major order, and so are the patches of a group; `rows` and
// `columns`, which count patches, are multiples of `merge`.
void cut_patches(const std::uint8_t* tile, std::ptrdiff_t row_bytes, int rows, int columns, int side, int merge,
                 std::uint8_t* patches);

}  // namespace tl
