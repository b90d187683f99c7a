#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "backends.h"
#include "bindings/bindings.h"
#include "bindings/network.h"
#include "bindings/step.h"
#include "cpu/cpu_executor.h"
#include "cpu/cpu_group.h"
#include "cuda/run_step.h"
#include "host/thread_pool.h"
#include "network/network_executor.h"

namespace nb = nanobind;

namespace tl {
namespace {

nb::dict memory(const DeviceExecutor& executor) {
  const MemoryUse use = executor.memory();
  nb::dict result;
  result["weights"] = use.weights;
  result["kv_cache"] = use.kv_cache;
  result["workspace"] = use.workspace;
  result["adapters"] = use.adapters;
  return result;
}

std::unique_ptr<float[]> run_step(LogitsExecutor& executor, const StepRequest& request) {
  return executor.step(request);
}

void compute(LogitsExecutor& executor, const StepRequest& request) {
  executor.step(request, [](std::span<const float>, ThreadPool&) {});
}

auto output(DeviceExecutor& executor, const std::string& name, std::int64_t begin, std::optional<std::int64_t> end) {
  StepOutput found;
  {
    const nb::gil_scoped_release release;
    found = executor.output(name, {begin, end});
  }
  return owning_array(std::move(found.bytes), found.rows, found.row_bytes);
}

}  // namespace

void bind_executor(nb::module_& module) {
  module.attr("SCRATCH_BYTES_PER_THREAD") = kScratchBytesPerThread;
  module.attr("SHARED_SCRATCH_BYTES") = kSharedScratchBytes;
  nb::class_<DeviceExecutor>(module, "DeviceExecutor")
      .def_prop_ro("memory", &memory)
      .def("place_adapter", &DeviceExecutor::place_adapter, nb::arg("adapter"), nb::kw_only(), nb::arg("slot"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("output", &output, nb::arg("name"), nb::arg("begin") = 0, nb::arg("end") = nb::none());
  module.def(
      "open_executor",
      [](const std::vector<const Engine*>& ranks, std::int64_t num_blocks, std::int64_t num_threads,
         std::vector<std::string> library_directories, const nb::object& network, const DeviceExecutor* features_of,
         int num_loras, std::vector<int> devices, double rank_timeout) {
        OpenOptions options{num_blocks,
                            num_threads,
                            std::move(library_directories),
                            borrow_network(network),
                            features_of,
                            num_loras,
                            std::move(devices),
                            rank_timeout};
        const nb::gil_scoped_release release;
        return open_executor(ranks, std::move(options));
      },
      nb::arg("ranks"), nb::kw_only(), nb::arg("num_blocks") = 0, nb::arg("num_threads") = 0,
      nb::arg("library_directories") = std::vector<std::string>(), nb::arg("network").none() = nb::none(),
      nb::arg("features_of").none() = nb::none(), nb::arg("num_loras") = 0, nb::arg("devices") = std::vector<int>(),
      nb::arg("rank_timeout") = OpenOptions().rank_timeout, nb::keep_alive<0, 1>(), nb::keep_alive<0, 6>());
  nb::class_<LogitsExecutor, DeviceExecutor>(module, "LogitsExecutor");
  nb::class_<NetworkExecutor, LogitsExecutor>(module, "NetworkExecutor");
  nb::class_<CpuExecutor, LogitsExecutor>(module, "CpuExecutor")
      .def(nb::init<const Engine&, std::int64_t, std::int64_t, std::string_view>(), nb::arg("engine"), nb::kw_only(),
           nb::arg("num_threads") = 0, nb::arg("num_blocks") = 0, nb::arg("isa") = "auto", nb::keep_alive<1, 2>())
      .def_prop_ro("num_threads", &CpuExecutor::num_threads)
      .def_prop_ro("isa", &CpuExecutor::isa);
  nb::class_<CpuGroup, LogitsExecutor>(module, "CpuGroup");
  def_step<LogitsExecutor, &run_step, &compute>(module);
  def_step<cuda::CudaExecutor, &cuda::run_step, &cuda::compute>(module);
}

}  // namespace tl
