#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/step.h"
#include "cuda/cuda_executor.h"
#include "cuda/measure/gram_matrix.h"

namespace nb = nanobind;

namespace tl {
namespace {

using Entries = nb::typed<nb::list, nb::typed<nb::dict, nb::str, nb::any>>;

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
Entries time_products(cuda::CudaExecutor& executor, std::int64_t num_tokens, std::int64_t above, int candidates,
                      int repeats, bool sustained) {
  std::vector<cuda::ProductTime> times;
  {
    nb::gil_scoped_release release;
    times = executor.time_products(above, num_tokens, candidates, {.repeats = repeats, .sustained = sustained});
  }
  Entries result;
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

nb::typed<nb::dict, nb::str, nb::str> describe_device(int index) {
  const cuda::Device device(index);
  int version = 0;
  cuda::driver().check(cuda::driver().driver_version(&version), "reading the version of the CUDA driver");
  nb::dict result;
  result["name"] = device.name();
  result["arch"] = device.arch();
  result["cuda_version"] = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  return result;
}

Entries describe_devices() {
  Entries result;
  for (const cuda::DeviceFacts& facts : cuda::visible_devices()) {
    nb::dict device;
    device["name"] = facts.name;
    device["arch"] = facts.arch;
    device["memory"] = facts.memory;
    result.append(device);
  }
  return result;
}

nb::typed<nb::dict, nb::str, std::size_t> device_memory(int index) {
  const cuda::DeviceMemory memory = cuda::Device(index).memory();
  nb::dict result;
  result["free"] = memory.free;
  result["total"] = memory.total;
  return result;
}

void bind_cuda_executor(nb::module_& module) {
  using cuda::CudaExecutor;
  nb::class_<CudaExecutor, DeviceExecutor>(module, "CudaExecutor", R"(
      An engine on a GPU: its weights, KV cache, kernels and graphs.

      An EventLoop runs steps on it; no step may run while one of this object's own methods runs.)")
      .def(
          "__init__",
          [](CudaExecutor* self, const Engine& engine, int device, std::int64_t num_blocks,
             std::vector<std::string> library_directories, const CudaExecutor* features_of, int num_loras,
             std::optional<std::size_t> adapter_bytes) {
            nb::gil_scoped_release release;
            new (self) CudaExecutor(engine, device, num_blocks, std::move(library_directories), features_of, num_loras,
                                    adapter_bytes.value_or(std::numeric_limits<std::size_t>::max()));
          },
          nb::arg("engine"), nb::kw_only(), nb::arg("device") = 0, nb::arg("num_blocks") = 0,
          nb::arg("library_directories") = std::vector<std::string>(), nb::arg("features_of").none() = nb::none(),
          nb::arg("num_loras") = 0, nb::arg("adapter_bytes").none() = nb::none(), nb::keep_alive<1, 2>(),
          nb::keep_alive<1, 6>(), R"(
              ``num_blocks`` 0: the cache size of the manifest; ``library_directories``: further places to look for
              cuBLASLt.

              The engine of a drafting head reads features that ``features_of`` keeps. ``num_loras``: slots for
              adapters, which take ``adapter_bytes`` of the GPU's memory (None: all that they need) and borrow the rest
              from the KV cache.

              Raises DeviceError (no such GPU, no driver, no cuBLASLt), EngineError (built for another GPU or
              cuBLASLt), LimitError (not enough memory).)")
      .def("time_products", &time_products, nb::kw_only(), nb::arg("num_tokens"), nb::arg("above") = 0,
           nb::arg("candidates") = 16, nb::arg("repeats") = 7, nb::arg("sustained") = false, R"(
               The fastest of the first ``candidates`` cuBLASLt algorithms for each kind of product in a step.

               An algorithm must compute every number of rows from that of a step of ``above`` tokens up to that of a
               step of ``num_tokens``; where no algorithm does, there are entries for parts of this range. A product
               that has no more rows than in a step of ``above`` tokens has no entry. ``sustained``: algorithms are
               timed after each has run alone for a while, so at the card's power limit. The keys of an entry: dtype,
               out_dtype, out_features, in_features, gated, residual, bias; rows, algo (hexadecimal), microseconds,
               heuristic_microseconds (of the algorithm that cuBLASLt proposes first). Raises LimitError, DeviceError.)")
      .def("time_programs", &time_programs, nb::arg("names"), nb::kw_only(), nb::arg("num_tokens"),
           nb::arg("repeats") = 7, nb::arg("sustained") = false, nb::call_guard<nb::gil_scoped_release>(), R"(
               Microseconds of each of the programs ``names``, which can carry out a step of ``num_tokens``, timed in
               turns.

               With ``sustained`` they are timed as in ``time_products``, and the result is None for all programs but
               the first and those that were fastest in turns. Raises LimitError, DeviceError.)")
      .def_prop_ro("cublaslt_version", &CudaExecutor::cublaslt_version,
                   "The version of cuBLASLt, in the form of cublasLtGetVersion.")
      .def_prop_ro(
          "device_name", [](const CudaExecutor& executor) { return executor.device().name(); },
          "The driver's name of the GPU.");
}

void bind_gram_matrix(nb::module_& module) {
  using cuda::GramMatrix;
  nb::class_<GramMatrix>(module, "GramMatrix", R"(
      The sum of the outer products of rows that steps leave as an output, float32 on the GPU; zero at first.)")
      .def(nb::init<cuda::CudaExecutor&, std::string>(), nb::arg("executor"), nb::arg("name"), nb::keep_alive<1, 2>(),
           nb::call_guard<nb::gil_scoped_release>(), R"(
               Sum up the output ``name`` of a CudaExecutor, a matrix of 16-bit elements.

               Raises ArgumentError (no such output), DeviceError (no cuBLASLt), LimitError (too little memory).)")
      .def("add", &GramMatrix::add, nb::call_guard<nb::gil_scoped_release>(),
           "Add the rows of the executor's last step. Raises DeviceError.")
      .def("values", &gram_values, "The sum so far [features, features]. Raises DeviceError.");
}

}  // namespace

void bind_cuda(nb::module_& module) {
  bind_cuda_executor(module);
  bind_gram_matrix(module);
  module.def("cuda_device", &describe_device, nb::arg("device") = 0, R"(
      A GPU's ``name`` and ``arch`` (``sm_90``), and the ``cuda_version`` (``13.0``) of its driver.

      Raises DeviceError.)");
  module.def("cuda_devices", &describe_devices, R"(
      Every GPU that this process may use: its ``name``, ``arch`` (``sm_90``) and ``memory`` (bytes); none without a
      driver.

      Nothing is done on the GPUs. Raises DeviceError if the driver fails.)");
  module.def(
      "cublaslt_version",
      [](const std::vector<std::string>& directories) { return cuda::cublaslt(directories).version(); },
      nb::arg("library_directories"), nb::call_guard<nb::gil_scoped_release>(), R"(
          The version of this machine's cuBLASLt (130100 is 13.1.0), which needs no GPU. Raises DeviceError without
          one.)");
  nb::class_<cuda::Device>(module, "GpuContext", R"(
      Keeps the CUDA context of a GPU, which takes 0.2 s to make and ends with its last user.)")
      .def(nb::init<int>(), nb::arg("device") = 0, nb::call_guard<nb::gil_scoped_release>(), "Raises DeviceError.")
      .def_prop_ro("free_memory", [](const cuda::Device& device) { return device.memory().free; }, "In bytes.");
  module.def("cuda_device_memory", &device_memory, nb::arg("device") = 0,
             "Bytes of a GPU's memory: ``free`` and ``total``. Raises DeviceError.");
  module.def(
      "cuda_slab_bytes", [](int index) { return cuda::slab_bytes(cuda::Device(index)); }, nb::arg("device") = 0,
      "Bytes of a slab, the unit in which memory moves between the KV cache and adapters. Raises DeviceError.");
}

}  // namespace tl
