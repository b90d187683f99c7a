// Runs a step of any executor: takes arrays and returns logits.
#pragma once

#include <nanobind/ndarray.h>

#include <memory>

#include "host/step_inputs.h"

namespace tl {

template <int kRank>
using Int32Array =
    nanobind::ndarray<const std::int32_t, nanobind::ndim<kRank>, nanobind::c_contig, nanobind::device::cpu>;

// The returned array owns its memory.
template <typename T, typename... Extents>
auto owning_array(std::unique_ptr<T[]> data, Extents... extents) {
  T* pointer = data.release();
  const nanobind::capsule owner(pointer, [](void* p) noexcept { std::unique_ptr<T[]>(static_cast<T*>(p)); });
  return nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<sizeof...(Extents)>>(
      pointer, {static_cast<std::size_t>(extents)...}, owner);
}

inline StepRequest request_of(const Int32Array<1>& token_ids, const Int32Array<1>& seq_lens,
                              const Int32Array<1>& past_lens, const Int32Array<2>& block_tables,
                              const Int32Array<1>& logits_indices) {
  const auto values = [](const auto& array) { return std::span(array.data(), array.size()); };
  return {
      .token_ids = values(token_ids),
      .seq_lens = values(seq_lens),
      .past_lens = values(past_lens),
      .block_tables = values(block_tables),
      .blocks_per_row = static_cast<std::int64_t>(block_tables.shape(1)),
      .logits_indices = values(logits_indices),
      .adapters = {},
      .token_rows = {},
      .received = {},
  };
}

// Adds a function `name` of an executor that calls `use(executor, request)`.
template <typename AnyExecutor, typename Use>
void def_with_request(nanobind::module_& module, const char* name, const char* doc, const Use& use) {
  const auto function = [use](AnyExecutor& executor, const Int32Array<1>& token_ids, const Int32Array<1>& seq_lens,
                              const Int32Array<1>& past_lens, const Int32Array<2>& block_tables,
                              const Int32Array<1>& logits_indices) {
    return use(executor, request_of(token_ids, seq_lens, past_lens, block_tables, logits_indices));
  };
  using nanobind::arg;
  module.def(name, function, arg("executor"), arg("token_ids").noconvert(), arg("seq_lens").noconvert(),
             arg("past_lens").noconvert(), arg("block_tables").noconvert(), arg("logits_indices").noconvert(), doc);
}

// Adds the functions `step` and `compute` of an executor. `run(executor, request)` returns a step's logits;
// `leave(executor, request)` leaves all results on the device. Both are called without the GIL.
template <typename AnyExecutor, auto run, auto leave>
void def_step(nanobind::module_& module) {
  def_with_request<AnyExecutor>(module, "step", R"(
      Run all new tokens of a batch through the model, without an event loop; the GIL is released.

      ``token_ids`` [T]: the new tokens of all sequences, one sequence after the other; ``seq_lens`` [S]: the number
      of new tokens of each, at least 1, T in all; ``past_lens`` [S]: the number of tokens in the cache;
      ``block_tables`` [S, columns]: cache blocks of each sequence, entries past its length are ignored;
      ``logits_indices`` [L]: rows of ``token_ids`` whose logits are wanted. Returns logits [L, vocab_size] in memory
      of their own.

      On a GPU, all rows of a sequence from its first wanted row on count towards the limit of rows of logits. Threads
      may share an executor: steps take turns. Raises LimitError before anything is computed if a size or value is
      beyond its limit.)",
                                [](AnyExecutor& executor, const StepRequest& request) {
                                  std::unique_ptr<float[]> logits;
                                  {
                                    const nanobind::gil_scoped_release release;
                                    logits = run(executor, request);
                                  }
                                  return owning_array(std::move(logits), request.logits_indices.size(),
                                                      executor.engine().manifest().model.vocab_size);
                                });
  def_with_request<AnyExecutor>(module, "compute",
                                "Like ``step``, but all results stay on the device, for :meth:`DeviceExecutor.output`.",
                                [](AnyExecutor& executor, const StepRequest& request) {
                                  const nanobind::gil_scoped_release release;
                                  leave(executor, request);
                                });
}

}  // namespace tl
