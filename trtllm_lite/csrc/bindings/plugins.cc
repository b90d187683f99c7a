// The operators of other packages.
#include "engine/plugins.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "cpu/load_plugin.h"
#include "cpu/plugin_library.h"
#include "errors.h"

namespace nb = nanobind;

namespace tl {
namespace {

// Lets Python, which knows what is installed, load a package that an engine needs.
void load_installed(const std::string& package) {
  const nb::gil_scoped_acquire acquire;
  try {
    nb::module_::import_("trtllm_lite.plugins.packages").attr("load_kernels")(package);
  } catch (const nb::python_error& error) {
    throw MissingPlugin(nb::cast<std::string>(nb::str(error.value())));
  }
}

}  // namespace

void bind_plugins(nb::module_& module) {
  module.attr("plugin_abi") = kPluginAbi;
  module.def("load_plugin", &load_plugin, nb::arg("path"), nb::arg("package"), nb::arg("version"), nb::arg("digest"),
             R"(
      Let engines call the CPU kernels in the shared library ``path`` of an installed package.

      Returns the names of the operators that have a kernel which this machine can run. ``digest`` is that of the
      package's schemas. Raises EngineError if the library does not load, or was compiled for
      another version of the ABI (``plugin_abi``) or against other schemas.)");
  set_plugin_loader(&load_installed);
}

}  // namespace tl
