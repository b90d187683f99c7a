// Bindings of adapters.
#include "adapters/adapter.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "engine/engine.h"
#include "errors.h"

namespace nb = nanobind;

namespace tl {
namespace {

using Matrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using InAndOut = std::pair<std::int64_t, std::int64_t>;
using Pairs = std::map<std::int64_t, std::tuple<std::string, Matrix, Matrix, double>>;

// Numpy has no bfloat16: a uint16 array holds its bits.
DType dtype_of(const Matrix& matrix) {
  const nb::dlpack::dtype found = matrix.dtype();
  if (found == nb::dtype<float>()) return DType::kFloat32;
  if (found == nb::dtype<std::uint16_t>()) return DType::kBFloat16;
  const auto code = static_cast<nb::dlpack::dtype_code>(found.code);
  if (code == nb::dlpack::dtype_code::Float && found.bits == 16 && found.lanes == 1) return DType::kFloat16;
  throw LimitError(
      "adapter: expected matrices of float32, float16, or bfloat16 as uint16, found others: convert them first");
}

StoredMatrix stored(const Matrix& matrix) {
  return {static_cast<const std::byte*>(matrix.data()), dtype_of(matrix), static_cast<std::int64_t>(matrix.shape(0)),
          static_cast<std::int64_t>(matrix.shape(1))};
}

void make(Adapter* self, const Engine& engine, const Pairs& pairs, const nb::bytes& key) {
  std::map<std::int64_t, LowRankPair> given;
  for (const auto& [number, pair] : pairs) {
    const auto& [name, a, b, scale] = pair;
    given[number] = {name, stored(a), stored(b), static_cast<float>(scale)};
  }
  const std::string name(key.c_str(), key.size());
  const nb::gil_scoped_release release;
  new (self) Adapter(low_rank_shapes(engine.plan()), given, name);
}

std::pair<std::int64_t, std::vector<InAndOut>> shapes(const Engine& engine) {
  const LowRankShapes found = low_rank_shapes(engine.plan());
  std::vector<InAndOut> parts;
  for (const LowRankShape& part : found.parts) parts.emplace_back(part.in_features, part.out_features);
  return {found.max_rank, parts};
}

}  // namespace

void bind_adapter(nb::module_& module) {
  nb::class_<Adapter>(module, "Adapter", "An adapter in memory, of one engine; any number of requests may share it.")
      .def("__init__", &make, nb::arg("engine"), nb::arg("pairs"), nb::arg("key"), R"(
          ``pairs`` maps a projection's number to its name, A [rank, in], B [out, rank], and the scale of B.

          The matrices are float32, float16, or bfloat16 as uint16. Adapters of equal ``key`` are equal. Raises
          LimitError for a rank, projection or size that the engine lacks, EngineError, with the name, for elements
          that are not finite.)");
  module.def("adapter_shapes", &shapes, nb::arg("engine"), R"(
      The highest rank of adapters, and [in, out] of the projections that they may change; 0 and [] without any.)");
}

}  // namespace tl
