// Lets tests time the steps of executors of `_core`, and read their caches.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "adapters/adapter.h"
#include "bindings/step.h"
#include "bindings/testing/testing.h"
#include "cuda/measure/time_step.h"
#include "cuda/run_step.h"

namespace nb = nanobind;

namespace tl {
namespace {

std::vector<std::pair<std::string, double>> time_step(cuda::CudaExecutor& executor, int num_rows, int num_tokens,
                                                      int past_len, int repeats,
                                                      const std::vector<std::shared_ptr<Adapter>>& adapters) {
  std::vector<std::pair<std::string, double>> times;
  for (const cuda::InstructionTime& time :
       cuda::time_step(executor, num_rows, num_tokens, past_len, repeats, adapters)) {
    times.emplace_back(time.name, time.microseconds * 1e-6);
  }
  return times;
}

auto read_block(cuda::CudaExecutor& executor, std::int64_t block) {
  std::unique_ptr<std::uint8_t[]> bytes;
  {
    const nb::gil_scoped_release release;
    bytes = cuda::read_block(executor, block);
  }
  return owning_array(std::move(bytes), executor.block_bytes());
}

}  // namespace

void bind_steps(nb::module_& module) {
  module.def("time_step", &time_step, nb::arg("executor"), nb::kw_only(), nb::arg("num_rows"),
             nb::arg("num_tokens") = 1, nb::arg("past_len") = 0, nb::arg("repeats") = 5,
             nb::arg("adapters") = std::vector<std::shared_ptr<Adapter>>(), nb::call_guard<nb::gil_scoped_release>());
  module.def("read_block", &read_block, nb::arg("executor"), nb::arg("block"));
}

}  // namespace tl
