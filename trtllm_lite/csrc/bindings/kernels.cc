// run_kernel, by which builds compare the forms of recurrent operators, and tests call kernels.
#include <nanobind/stl/pair.h>

#include "bindings/bindings.h"
#include "bindings/kernel_call.h"
#include "host/cpu_count.h"
#include "host/thread_pool.h"

namespace nb = nanobind;

namespace tl {
namespace {

using LowRankMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// The adapter of each token: A and B for each projection, or neither.
using AdaptersOfTokens = std::vector<std::vector<std::optional<std::pair<LowRankMatrix, LowRankMatrix>>>>;

std::vector<std::vector<LowRankPart>> low_rank_parts(const AdaptersOfTokens& adapters) {
  std::vector<std::vector<LowRankPart>> result(adapters.size());
  for (std::size_t token = 0; token < adapters.size(); ++token) {
    for (const auto& pair : adapters[token]) {
      LowRankPart& part = result[token].emplace_back();
      if (pair) part = {pair->first.data(), pair->second.data(), static_cast<std::int64_t>(pair->first.shape(0))};
    }
  }
  return result;
}

void run_kernel(std::string_view op, const KernelArrays& inputs, const KernelArrays& outputs,
                const KernelAttributes& attributes, const OperandNames& layouts, const OperandNames& dtypes,
                std::string_view isa, int num_threads, std::string_view product_dtype,
                const AdaptersOfTokens& adapters) {
  const KernelCall call = prepare_call(op, inputs, outputs, attributes, layouts, dtypes, isa, product_dtype);
  const std::vector<std::vector<LowRankPart>> parts = low_rank_parts(adapters);
  std::vector<const LowRankPart*> of_tokens;
  for (const auto& adapter : parts) of_tokens.push_back(adapter.empty() ? nullptr : adapter.data());
  nb::gil_scoped_release release;
  ThreadPool pool(resolve_num_threads(num_threads));
  call.run(&pool, of_tokens.empty() ? nullptr : of_tokens.data());
}

}  // namespace

void bind_kernels(nb::module_& module) {
  module.def("run_kernel", &run_kernel, nb::arg("op"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("attributes"),
             nb::arg("layouts") = nb::none(), nb::arg("dtypes") = nb::none(), nb::arg("isa") = "auto",
             nb::arg("num_threads") = 0, nb::arg("product_dtype") = "float32", nb::arg("adapters") = AdaptersOfTokens(),
             R"(
                 Run one kernel on arrays after the engine's schema check; outputs are written in place.

                 ``layouts`` and ``dtypes`` are per input; bfloat16 arrays come as uint16. A packed weight's logical
                 extent is taken from the other operands, or else its padding counts. Values of int32 inputs are not
                 checked. ``product_dtype`` is the type to which activations may be rounded before they are
                 multiplied: ``float32``, which changes nothing, or ``bfloat16``. ``adapters`` has for each token A
                 and the transposed B of each projection, or nothing.)");
}

}  // namespace tl
