#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/step.h"
#include "cuda/cuda_executor.h"
#include "cuda/measure/gram_matrix.h"

namespace nb = nanobind;

namespace tl {
namespace {

std::string hexadecimal(const cuda::MatmulAlgorithm& algorithm) {
  std::array<unsigned char, sizeof(algorithm.data)> bytes;
  std::memcpy(bytes.data(), algorithm.data, sizeof(algorithm.data));
  std::string text;
  for (const unsigned char byte : bytes) {
    for (const int digit : {byte / 16, byte % 16}) text += "0123456789abcdef"[digit];
  }
  return text;
}

// Returns a dict for each kind of product; its keys are those of the builder's timing cache.
nb::list time_products(cuda::CudaExecutor& executor, std::int64_t num_tokens, std::int64_t above, int candidates,
                       int repeats, bool sustained) {
  std::vector<cuda::ProductTime> times;
  {
    nb::gil_scoped_release release;
    times = executor.time_products(above, num_tokens, candidates, {.repeats = repeats, .sustained = sustained});
  }
  nb::list result;
  for (const cuda::ProductTime& time : times) {
    nb::dict entry;
    entry["dtype"] = entry["x_dtype"] = std::string(to_string(time.product->dtype));
    entry["out_dtype"] = std::string(to_string(time.product->out_dtype));
    entry["out_features"] = time.product->out_features;
    entry["in_features"] = time.product->in_features;
    entry["gated"] = false;
    entry["residual"] = time.product->residual.has_value();
    entry["bias"] = time.product->bias.has_value();
    entry["blocks"] = "";
    entry["row_scales"] = false;
    entry["experts"] = "";
    entry["rows"] = time.rows;
    entry["algo"] = hexadecimal(time.algorithm);
    entry["microseconds"] = time.microseconds;
    entry["heuristic_microseconds"] = time.heuristic_microseconds;
    result.append(entry);
  }
  return result;
}

std::vector<std::optional<double>> time_programs(cuda::CudaExecutor& executor, const std::vector<std::string>& names,
                                                 std::int64_t num_tokens, int repeats, bool sustained) {
  return executor.time_programs(names, num_tokens, {.repeats = repeats, .sustained = sustained});
}

auto gram_values(cuda::GramMatrix& matrix) {
  std::unique_ptr<float[]> values;
  {
    const nb::gil_scoped_release release;
    values = matrix.values();
  }
  return owning_array(std::move(values), matrix.features(), matrix.features());
}

nb::dict describe_device(int index) {
  const cuda::Device device(index);
  int version = 0;
  cuda::driver().check(cuda::driver().driver_version(&version), "reading the version of the CUDA driver");
  nb::dict result;
  result["name"] = device.name();
  result["arch"] = device.arch();
  result["cuda_version"] = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  return result;
}

nb::list describe_devices() {
  nb::list result;
  for (const cuda::DeviceFacts& facts : cuda::visible_devices()) {
    nb::dict device;
    device["name"] = facts.name;
    device["arch"] = facts.arch;
    device["memory"] = facts.memory;
    result.append(device);
  }
  return result;
}

nb::dict device_memory(int index) {
  const cuda::DeviceMemory memory = cuda::Device(index).memory();
  nb::dict result;
  result["free"] = memory.free;
  result["total"] = memory.total;
  return result;
}

}  // namespace

void bind_cuda(nb::module_& module) {
  using cuda::CudaExecutor;
  using cuda::GramMatrix;
  nb::class_<CudaExecutor, DeviceExecutor>(module, "CudaExecutor")
      .def(
          "__init__",
          [](CudaExecutor* self, const Engine& engine, int device, std::int64_t num_blocks,
             std::vector<std::string> library_directories, const CudaExecutor* features_of, int num_loras) {
            nb::gil_scoped_release release;
            new (self) CudaExecutor(engine, device, num_blocks, std::move(library_directories), features_of, num_loras);
          },
          nb::arg("engine"), nb::kw_only(), nb::arg("device") = 0, nb::arg("num_blocks") = 0,
          nb::arg("library_directories") = std::vector<std::string>(), nb::arg("features_of").none() = nb::none(),
          nb::arg("num_loras") = 0, nb::keep_alive<1, 2>(), nb::keep_alive<1, 6>())
      .def("time_products", &time_products, nb::kw_only(), nb::arg("num_tokens"), nb::arg("above") = 0,
           nb::arg("candidates") = 16, nb::arg("repeats") = 7, nb::arg("sustained") = false)
      .def("time_programs", &time_programs, nb::arg("names"), nb::kw_only(), nb::arg("num_tokens"),
           nb::arg("repeats") = 7, nb::arg("sustained") = false, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("cublaslt_version", &CudaExecutor::cublaslt_version)
      .def_prop_ro("device_name", [](const CudaExecutor& executor) { return executor.device().name(); });
  nb::class_<GramMatrix>(module, "GramMatrix")
      .def(nb::init<CudaExecutor&, std::string>(), nb::arg("executor"), nb::arg("name"), nb::keep_alive<1, 2>(),
           nb::call_guard<nb::gil_scoped_release>())
      .def("add", &GramMatrix::add, nb::call_guard<nb::gil_scoped_release>())
      .def("values", &gram_values);
  module.def("cuda_device", &describe_device, nb::arg("device") = 0);
  module.def("cuda_devices", &describe_devices);
  module.def(
      "cublaslt_version",
      [](const std::vector<std::string>& directories) { return cuda::cublaslt(directories).version(); },
      nb::arg("library_directories"), nb::call_guard<nb::gil_scoped_release>());
  module.def("cuda_device_memory", &device_memory, nb::arg("device") = 0);
}

}  // namespace tl
