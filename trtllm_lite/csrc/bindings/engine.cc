#include "engine/engine.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace tl {
namespace {

auto network(const Engine& engine, const std::string& key) {
  const std::span<const std::byte> bytes = engine.network(key);
  return nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>(bytes.data(), {bytes.size()}, nb::handle());
}

}  // namespace

void bind_engine(nb::module_& module) {
  nb::class_<Engine>(module, "Engine")
      .def(nb::init<const std::string&>(), nb::arg("path"), nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("manifest", &Engine::manifest_json)
      .def_prop_ro("plan", &Engine::plan_json)
      .def_prop_ro("file_bytes", &Engine::file_bytes)
      .def_prop_ro("weight_bytes", &Engine::weight_bytes)
      .def("network", &network, nb::arg("key"), nb::rv_policy::reference_internal);
}

}  // namespace tl
