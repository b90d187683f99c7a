#include "bindings/remote_stages.h"

#include <algorithm>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/python_calls.h"
#include "host/cpu_count.h"

namespace nb = nanobind;

namespace tl {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

}  // namespace

RemoteStages::RemoteStages(const Engine& engine, PyStages stages)
    : engine_(engine),
      stages_(std::move(stages)),
      num_stages_(nb::cast<int>(stages_.attr("num_stages"))),
      num_blocks_(nb::cast<std::int64_t>(stages_.attr("num_blocks"))),
      block_bytes_(nb::cast<std::size_t>(stages_.attr("block_bytes"))),
      memory_(memory_use(stages_.attr("memory"))),
      pool_(new ThreadPool(std::min(resolve_num_threads(0), kMaxSamplingThreads))) {}

RemoteStages::~RemoteStages() {
  const nb::gil_scoped_acquire acquire;
  stages_.reset();
}

void RemoteStages::begin(const StepRequest& request) {
  call_python([&] {
    const auto columns = static_cast<std::size_t>(request.blocks_per_row);
    stages_.attr("begin")(array_over(request.token_ids), array_over(request.seq_lens), array_over(request.past_lens),
                          array_over(request.block_tables.data(), request.block_tables.size() / columns, columns),
                          array_over(request.logits_indices));
  });
}

void RemoteStages::finish(const LogitsUse& use) {
  call_python([&] {
    const auto logits = nb::cast<Logits>(stages_.attr("finish")());
    const nb::gil_scoped_release release;
    use({logits.data(), logits.size()}, *pool_);
  });
}

void RemoteStages::copy_block(std::int64_t src, std::int64_t dst) {
  call_python([&] { stages_.attr("copy_block")(src, dst); });
}

void RemoteStages::save_block(std::int64_t block, std::span<std::byte> out) {
  auto* const data = reinterpret_cast<std::uint8_t*>(out.data());
  call_python([&] { stages_.attr("save_block")(block, array_over(data, out.size())); });
}

void RemoteStages::load_block(std::int64_t block, std::span<const std::byte> data) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(data.data());
  call_python([&] { stages_.attr("load_block")(block, array_over(bytes, data.size())); });
}

StepOutput RemoteStages::output(const std::string& name, const RowSlice&) {
  throw ArgumentError("the output " + name + " stays in the process of its stage: load the engine in this process");
}

void bind_remote_stages(nb::module_& module) {
  nb::class_<RemoteStages, LogitsExecutor>(module, "RemoteStages", "An engine whose stages compute in other processes.")
      .def(nb::init<const Engine&, PyStages>(), nb::arg("engine"), nb::arg("stages"), nb::keep_alive<1, 2>(),
           "``engine`` is the engine of rank 0, from which all common facts of the stages are read.");
}

}  // namespace tl
