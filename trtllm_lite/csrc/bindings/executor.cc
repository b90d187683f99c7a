#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include "bindings/bindings.h"
#include "cpu/cpu_executor.h"
#include "cpu/kernel.h"

namespace nb = nanobind;

namespace tl {
namespace {

nb::dict memory(const CpuExecutor& executor) {
  const MemoryUse use = executor.memory();
  nb::dict result;
  result["weights"] = use.weights;
  result["kv_cache"] = use.kv_cache;
  result["workspace"] = use.workspace;
  return result;
}

}  // namespace

void bind_executor(nb::module_& module) {
  module.attr("SCRATCH_BYTES_PER_THREAD") = kScratchBytesPerThread;
  nb::class_<CpuExecutor>(module, "CpuExecutor")
      .def(nb::init<const Engine&, std::int64_t, std::int64_t, std::string_view>(), nb::arg("engine"), nb::kw_only(),
           nb::arg("num_threads") = 0, nb::arg("num_blocks") = 0, nb::arg("isa") = "auto", nb::keep_alive<1, 2>())
      .def_prop_ro("memory", &memory)
      .def_prop_ro("num_threads", &CpuExecutor::num_threads)
      .def_prop_ro("isa", &CpuExecutor::isa);
}

}  // namespace tl
