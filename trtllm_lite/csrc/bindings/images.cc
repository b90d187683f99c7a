// Bindings of what is done with the pixels of images.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#include "bindings/bindings.h"
#include "errors.h"
#include "media/cut_patches.h"
#include "media/resize.h"

namespace nb = nanobind;

namespace tl {
namespace {

using Pixels = nb::ndarray<const std::uint8_t, nb::shape<-1, -1, 3>, nb::c_contig, nb::device::cpu>;
using NewPixels = nb::ndarray<std::uint8_t, nb::shape<-1, -1, 3>, nb::c_contig, nb::device::cpu>;
using Tile = nb::ndarray<const std::uint8_t, nb::shape<-1, -1, 3>, nb::device::cpu>;
using Patches = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

constexpr std::size_t kMaxSide = 1 << 28;

void resize_image(const Pixels& image, const NewPixels& out, int filter, int implementation) {
  for (const std::size_t side : {image.shape(0), image.shape(1), out.shape(0), out.shape(1)}) {
    if (side < 1 || side > kMaxSide) throw ArgumentError("expected images whose sides have 1 to 2^28 pixels");
  }
  if (filter < static_cast<int>(Filter::kLanczos) || filter > static_cast<int>(Filter::kHamming)) {
    throw ArgumentError("expected a filter from 1 to 5");
  }
  const WeightedSum sum = implementation < 0 ? nullptr : weighted_sum(implementation);
  if (sum == nullptr) throw ArgumentError("expected the number of an implementation that this machine can run");
  nb::gil_scoped_release release;
  resize(image.data(), static_cast<int>(image.shape(0)), static_cast<int>(image.shape(1)), out.data(),
         static_cast<int>(out.shape(0)), static_cast<int>(out.shape(1)), static_cast<Filter>(filter), sum);
}

void cut_tile(const Tile& tile, int side, int merge, const Patches& out) {
  if (side < 1 || merge < 1 || tile.shape(0) > kMaxSide || tile.shape(1) > kMaxSide) {
    throw ArgumentError("expected positive numbers, and a tile whose sides have at most 2^28 pixels");
  }
  const auto rows = static_cast<int>(tile.shape(0) / side);
  const auto columns = static_cast<int>(tile.shape(1) / side);
  const std::size_t count = static_cast<std::size_t>(rows) * columns;
  const bool is_dense = tile.stride(2) == 1 && tile.stride(1) == 3 && tile.stride(0) >= 0;
  if (!is_dense || rows % merge != 0 || columns % merge != 0 || out.shape(0) != count ||
      out.shape(1) != std::size_t{3} * side * side) {
    throw ArgumentError("expected a tile of dense rows, whole groups of patches, and room for exactly these");
  }
  nb::gil_scoped_release release;
  cut_patches(tile.data(), tile.stride(0), rows, columns, side, merge, out.data());
}

}  // namespace

void bind_images(nb::module_& module) {
  module.def("resize_image", &resize_image, nb::arg("image"), nb::arg("out").noconvert(), nb::arg("filter"),
             nb::arg("implementation") = 0, R"(
      Resize ``image`` to the extents of ``out``, both uint8 [height, width, 3], with Pillow's results.

      ``filter`` is Pillow's number of a filter other than NEAREST. Implementations, best first, have the same results;
      all but 0 are for tests. Raises ArgumentError. The GIL is released.)");
  module.def("cut_patches", &cut_tile, nb::arg("tile"), nb::arg("side"), nb::arg("merge"), nb::arg("out").noconvert(),
             R"(
      Write the patches of ``tile``, uint8 [height, width, 3], to ``out``: uint8 [num_patches, 3 * side * side].

      A patch is [channel, row, column]. Those of ``merge`` x ``merge`` follow each other; pixels that make up no whole
      patch are left out. Raises ArgumentError if extents do not agree. The GIL is released.)");
}

}  // namespace tl
