// Bindings of adapters.
#include "adapters/adapter.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "engine/engine.h"
#include "errors.h"

namespace nb = nanobind;

namespace tl {
namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::span<const float> span_of(const Matrix& matrix) { return {matrix.data(), matrix.size()}; }

void make(Adapter* self, const Engine& engine, const std::map<std::int64_t, std::pair<Matrix, Matrix>>& pairs,
          const nb::bytes& key) {
  std::map<std::int64_t, LowRankPair> given;
  for (const auto& [number, pair] : pairs) {
    const auto& [a, b] = pair;
    if (a.shape(0) != b.shape(0)) throw LimitError("adapter: expected A and B of one rank, found two");
    given[number] = {span_of(a), span_of(b), static_cast<std::int64_t>(a.shape(0))};
  }
  const std::string name(key.c_str(), key.size());
  const nb::gil_scoped_release release;
  new (self) Adapter(low_rank_shapes(engine.plan()), given, name);
}

nb::tuple shapes(const Engine& engine) {
  const LowRankShapes found = low_rank_shapes(engine.plan());
  nb::list parts;
  for (const LowRankShape& part : found.parts) parts.append(nb::make_tuple(part.in_features, part.out_features));
  return nb::make_tuple(found.max_rank, parts);
}

}  // namespace

void bind_adapter(nb::module_& module) {
  nb::class_<Adapter>(module, "Adapter").def("__init__", &make, nb::arg("engine"), nb::arg("pairs"), nb::arg("key"));
  module.def("adapter_shapes", &shapes, nb::arg("engine"),
             nb::sig("def adapter_shapes(engine: Engine) -> tuple[int, list[tuple[int, int]]]"));
}

}  // namespace tl
