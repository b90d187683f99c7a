// time_kernel, which lets benchmarks call a kernel without an engine.
#include <chrono>

#include "bindings/kernel_call.h"
#include "bindings/testing/testing.h"
#include "cpu/cache_sweep.h"
#include "host/cpu_count.h"
#include "host/thread_pool.h"

namespace nb = nanobind;

namespace tl {
namespace {

// The seconds of each of `repeats` calls. Before each, sweep_bytes of other memory are read.
std::vector<double> time_kernel(std::string_view op, const KernelArrays& inputs, const KernelArrays& outputs,
                                const KernelAttributes& attributes, const OperandNames& layouts,
                                const OperandNames& dtypes, std::string_view isa, int num_threads,
                                std::string_view product_dtype, int repeats, std::size_t sweep_bytes) {
  const KernelCall call = prepare_call(op, inputs, outputs, attributes, layouts, dtypes, isa, product_dtype);
  nb::gil_scoped_release release;
  ThreadPool pool(resolve_num_threads(num_threads));
  CacheSweep sweep(sweep_bytes);
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    sweep.read(&pool);
    const auto start = std::chrono::steady_clock::now();
    call.run(&pool);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return seconds;
}

std::vector<std::string> isa_names() {
  const std::vector<std::string_view> names = supported_isas();
  return {names.begin(), names.end()};
}

}  // namespace

void bind_timing(nb::module_& module) {
  module.def("supported_isas", &isa_names,
             "Instruction sets that this build has kernels for and this machine can execute, best first.");
  module.def("time_kernel", &time_kernel, nb::arg("op"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("attributes"),
             nb::arg("layouts") = nb::none(), nb::arg("dtypes") = nb::none(), nb::arg("isa") = "auto",
             nb::arg("num_threads") = 0, nb::arg("product_dtype") = "float32", nb::kw_only(), nb::arg("repeats"),
             nb::arg("sweep_bytes"), R"(
                 Seconds of each of ``repeats`` runs of a kernel, each after ``sweep_bytes`` of other memory have been
                 read.)");
}

}  // namespace tl
