#include "executor.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include "bindings/bindings.h"
#include "bindings/step.h"

namespace nb = nanobind;

namespace tl {
namespace {

std::unique_ptr<float[]> run_step(Executor& executor, const StepRequest& request) { return executor.step(request); }

nb::dict memory(const Executor& executor) {
  const MemoryUse use = executor.memory();
  nb::dict result;
  result["weights"] = use.weights;
  result["kv_cache"] = use.kv_cache;
  result["workspace"] = use.workspace;
  return result;
}

}  // namespace

void bind_executor(nb::module_& module) {
  auto type = nb::class_<Executor>(module, "Executor");
  def_step<&run_step>(type);
  type.def(nb::init<const Engine&, int, std::int64_t, std::string_view>(), nb::arg("engine"), nb::kw_only(),
           nb::arg("num_threads") = 0, nb::arg("num_blocks") = 0, nb::arg("isa") = "auto", nb::keep_alive<1, 2>())
      .def_prop_ro("memory", &memory)
      .def_prop_ro("num_threads", &Executor::num_threads)
      .def_prop_ro("isa", &Executor::isa);
}

}  // namespace tl
