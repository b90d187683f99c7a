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
  nb::class_<Engine>(module, "Engine", R"(
      An engine file, mapped read-only and checked from the first byte to the last.

      The checks cover structure, versions, all checksums, and the plan against the operators' schemas: an accepted
      file is safe to execute, whoever wrote it.)")
      .def(nb::init<const std::string&>(), nb::arg("path"), nb::call_guard<nb::gil_scoped_release>(),
           "Raises EngineError, with the path, what was expected, what was found, and a remedy.")
      .def_prop_ro("manifest", &Engine::manifest_json, "The manifest as JSON.")
      .def_prop_ro("plan", &Engine::plan_json, "The plan as JSON.")
      .def_prop_ro("file_bytes", &Engine::file_bytes, "Size of the file.")
      .def_prop_ro("weight_bytes", &Engine::weight_bytes, "Bytes of all weights, in the file and in memory.")
      .def("network", &network, nb::arg("key"), nb::rv_policy::reference_internal, R"(
          A read-only view of the file's entry ``network.<key>``. Raises EngineError if there is none.)");
}

}  // namespace tl
