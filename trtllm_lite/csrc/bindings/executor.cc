#include "executor.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <memory>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace tl {
namespace {

template <int kRank>
using Int32Array = nb::ndarray<const std::int32_t, nb::ndim<kRank>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

template <typename Array>
std::span<const std::int32_t> values(const Array& array) {
  return {array.data(), array.size()};
}

// Owned by the array that is returned: nobody else sees or reuses it.
Logits make_logits(std::unique_ptr<float[]> data, std::size_t rows, std::size_t columns) {
  float* pointer = data.release();
  const nb::capsule owner(pointer, [](void* p) noexcept { std::unique_ptr<float[]>(static_cast<float*>(p)); });
  return Logits(pointer, {rows, columns}, owner);
}

Logits step(Executor& executor, const Int32Array<1>& token_ids, const Int32Array<1>& seq_lens,
            const Int32Array<1>& past_lens, const Int32Array<2>& block_tables, const Int32Array<1>& logits_indices) {
  const StepRequest request{
      .token_ids = values(token_ids),
      .seq_lens = values(seq_lens),
      .past_lens = values(past_lens),
      .block_tables = values(block_tables),
      .blocks_per_row = static_cast<std::int64_t>(block_tables.shape(1)),
      .logits_indices = values(logits_indices),
  };
  const std::size_t rows = request.logits_indices.size();
  const auto columns = static_cast<std::size_t>(executor.vocab_size());
  std::unique_ptr<float[]> logits;
  {
    nb::gil_scoped_release release;
    logits = executor.step(request);
  }
  return make_logits(std::move(logits), rows, columns);
}

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
  nb::class_<Executor>(module, "Executor")
      .def(nb::init<const Engine&, int, std::int64_t, std::string_view>(), nb::arg("engine"), nb::kw_only(),
           nb::arg("num_threads") = 0, nb::arg("num_blocks") = 0, nb::arg("isa") = "auto", nb::keep_alive<1, 2>())
      .def("step", &step, nb::arg("token_ids").noconvert(), nb::arg("seq_lens").noconvert(),
           nb::arg("past_lens").noconvert(), nb::arg("block_tables").noconvert(), nb::arg("logits_indices").noconvert())
      .def_prop_ro("memory", &memory)
      .def_prop_ro("num_threads", &Executor::num_threads)
      .def_prop_ro("isa", &Executor::isa);
}

}  // namespace tl
