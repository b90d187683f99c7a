#include "engine/engine.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace tl {

void bind_engine(nb::module_& module) {
  nb::class_<Engine>(module, "Engine")
      .def(nb::init<const std::string&>(), nb::arg("path"), nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("manifest", &Engine::manifest_json)
      .def_prop_ro("plan", &Engine::plan_json)
      .def_prop_ro("file_bytes", &Engine::file_bytes)
      .def_prop_ro("weight_bytes", &Engine::weight_bytes);
}

}  // namespace tl
