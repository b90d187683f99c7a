// Lets tests read the caches of executors of `_core`.
#include <nanobind/nanobind.h>

#include "bindings/step.h"
#include "bindings/testing/testing.h"
#include "cuda/step/run_step.h"

namespace nb = nanobind;

namespace tl {
namespace {

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
  module.def("read_block", &read_block, nb::arg("executor"), nb::arg("block"), R"(
      The contents of a block of the KV cache: the manifest's ``bytes_per_block`` bytes.

      For each layer in turn its keys (rotated), then its values: [num_kv_heads, tokens_per_block, head_dim] of the
      cache's dtype, row-major. Raises LimitError if there is no such block.)");
}

}  // namespace tl
