// Lets tests read the contents of adapters of `_core`.
#include "adapters/adapter.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "bindings/step.h"
#include "bindings/testing/testing.h"

namespace nb = nanobind;

namespace tl {
namespace {

using NumpyArray = nb::ndarray<nb::numpy>;
using Matrices = nb::typed<nb::list, std::optional<std::pair<NumpyArray, NumpyArray>>>;

template <typename T>
nb::object copied(const void* values, std::int64_t rows, std::int64_t columns) {
  std::unique_ptr<T[]> copy(new T[static_cast<std::size_t>(rows * columns)]);
  std::memcpy(copy.get(), values, static_cast<std::size_t>(rows * columns) * sizeof(T));
  return nb::cast(owning_array(std::move(copy), rows, columns));
}

nb::object matrices(const LowRankPart& part, const LowRankShape& shape) {
  return nb::make_tuple(copied<float>(part.a, part.rank, shape.in_features),
                        copied<float>(part.b, part.rank, shape.out_features));
}

nb::object matrices(const HalfPart& part, const LowRankShape& shape) {
  return nb::make_tuple(copied<std::uint16_t>(part.a, part.rank, shape.in_features),
                        copied<std::uint16_t>(part.b, shape.out_features, part.rank));
}

Matrices adapter_matrices(const Adapter& adapter) {
  nb::list result;
  for (std::size_t i = 0; i < adapter.shapes().parts.size(); ++i) {
    const LowRankShape& shape = adapter.shapes().parts[i];
    const LowRankPart& part = adapter.parts()[i];
    const HalfPart& half = adapter.half_parts()[i];
    if (part.rank > 0) {
      result.append(matrices(part, shape));
    } else {
      result.append(half.rank > 0 ? matrices(half, shape) : nb::none());
    }
  }
  return result;
}

}  // namespace

void bind_adapter_matrices(nb::module_& module) {
  module.def("adapter_matrices", &adapter_matrices, nb::arg("adapter"), R"(
      Copies of an adapter's matrices for each projection: nothing, or A and B with the scale in B.

      For CPUs that is float32 A [rank, in] and B transposed [rank, out], for GPUs A [rank, in] and B [out, rank] of
      16-bit elements, as uint16.)");
}

}  // namespace tl
