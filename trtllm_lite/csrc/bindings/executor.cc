#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "adapters/adapter.h"
#include "backends.h"
#include "bindings/bindings.h"
#include "bindings/network.h"
#include "bindings/step.h"
#include "cpu/cpu_executor.h"
#include "cpu/cpu_group.h"
#include "cpu/cpu_pipeline.h"
#include "cpu/time_step.h"
#include "cuda/measure/time_step.h"
#include "cuda/step/run_step.h"
#include "errors.h"
#include "host/thread_pool.h"
#include "network/network_executor.h"
#include "ranks/place.h"

namespace nb = nanobind;

namespace tl {
namespace {

using ByteArray = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

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

// Adds a function `name` that opens an executor for an engine by calling `open`.
template <auto open>
void def_open(nb::module_& module, const char* name) {
  module.def(
      name,
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
        return open(ranks, std::move(options));
      },
      nb::arg("ranks"), nb::kw_only(), nb::arg("num_blocks") = 0, nb::arg("num_threads") = 0,
      nb::arg("library_directories") = std::vector<std::string>(), nb::arg("network").none() = nb::none(),
      nb::arg("features_of").none() = nb::none(), nb::arg("num_loras") = 0, nb::arg("devices") = std::vector<int>(),
      nb::arg("rank_timeout") = OpenOptions().rank_timeout, nb::keep_alive<0, 1>(), nb::keep_alive<0, 6>());
}

// Runs a step of a pipeline stage. Returns the bytes to send to the next stage, or the logits if it is the last.
nb::object step_stage(LogitsExecutor& executor, const Int32Array<1>& token_ids, const Int32Array<1>& seq_lens,
                      const Int32Array<1>& past_lens, const Int32Array<2>& block_tables,
                      const Int32Array<1>& logits_indices, const ByteArray& received) {
  executor.check_makes_logits();
  StepRequest request = request_of(token_ids, seq_lens, past_lens, block_tables, logits_indices);
  request.received = std::as_bytes(std::span(received.data(), received.size()));
  std::unique_ptr<float[]> made;
  std::size_t size = 0;
  {
    const nb::gil_scoped_release release;
    executor.step(request, [&](std::span<const float> rows, ThreadPool&) {
      size = rows.size();
      made = std::make_unique_for_overwrite<float[]>(size);
      std::ranges::copy(rows, made.get());
    });
  }
  if (is_last_stage(executor.engine().manifest().mapping)) {
    return nb::cast(owning_array(std::move(made), logits_indices.size(), executor.vocab_size()));
  }
  auto bytes = std::make_unique_for_overwrite<std::uint8_t[]>(size * sizeof(float));
  std::memcpy(bytes.get(), made.get(), size * sizeof(float));
  return nb::cast(owning_array(std::move(bytes), size * sizeof(float)));
}

void check_block(const LogitsExecutor& executor, std::int64_t block) {
  if (block >= 0 && block < executor.num_blocks()) return;
  throw LimitError("block: expected 0 to " + std::to_string(executor.num_blocks() - 1) + ", found " +
                   std::to_string(block));
}

void copy_block(LogitsExecutor& executor, std::int64_t src, std::int64_t dst) {
  check_block(executor, src);
  check_block(executor, dst);
  executor.copy_block(src, dst);
}

auto save_block(LogitsExecutor& executor, std::int64_t block) {
  check_block(executor, block);
  const std::size_t size = executor.block_bytes();
  auto bytes = std::make_unique_for_overwrite<std::uint8_t[]>(size);
  {
    const nb::gil_scoped_release release;
    executor.save_block(block, std::as_writable_bytes(std::span(bytes.get(), size)));
  }
  return owning_array(std::move(bytes), size);
}

void load_block(LogitsExecutor& executor, std::int64_t block, const ByteArray& data) {
  check_block(executor, block);
  if (data.size() != executor.block_bytes()) {
    throw LimitError("data: expected the " + std::to_string(executor.block_bytes()) + " bytes of a block, found " +
                     std::to_string(data.size()));
  }
  const nb::gil_scoped_release release;
  executor.load_block(block, std::as_bytes(std::span(data.data(), data.size())));
}

auto output(DeviceExecutor& executor, const std::string& name, std::int64_t begin, std::optional<std::int64_t> end) {
  StepOutput found;
  {
    const nb::gil_scoped_release release;
    found = executor.output(name, {begin, end});
  }
  return owning_array(std::move(found.bytes), found.rows, found.row_bytes);
}

using NamedTimes = std::vector<std::pair<std::string, double>>;

NamedTimes in_seconds(const std::vector<InstructionTime>& times) {
  NamedTimes named;
  for (const InstructionTime& time : times) named.emplace_back(time.name, time.microseconds * 1e-6);
  return named;
}

NamedTimes time_cpu_step(CpuExecutor& executor, int num_rows, int num_tokens, int past_len, int repeats) {
  return in_seconds(time_step(executor, {num_rows, num_tokens, past_len}, repeats));
}

NamedTimes time_cuda_step(cuda::CudaExecutor& executor, int num_rows, int num_tokens, int past_len, int repeats,
                          const std::vector<std::shared_ptr<Adapter>>& adapters) {
  return in_seconds(cuda::time_step(executor, {num_rows, num_tokens, past_len}, repeats, adapters));
}

nb::list expert_counts(DeviceExecutor& executor) {
  std::vector<ExpertCounts> found;
  {
    const nb::gil_scoped_release release;
    found = executor.expert_counts();
  }
  nb::list routers;
  for (const ExpertCounts& counts : found) {
    nb::dict router;
    router["choices"] = counts.choices;
    router["experts_read"] = counts.experts_read;
    router["steps"] = counts.steps;
    router["busiest_choices"] = counts.busiest_choices;
    routers.append(router);
  }
  return routers;
}

}  // namespace

void bind_executor(nb::module_& module) {
  module.attr("SCRATCH_BYTES_PER_THREAD") = kScratchBytesPerThread;
  module.attr("SHARED_SCRATCH_BYTES") = kSharedScratchBytes;
  nb::class_<DeviceExecutor>(module, "DeviceExecutor")
      .def_prop_ro("memory", &memory)
      .def("place_adapter", &DeviceExecutor::place_adapter, nb::arg("adapter"), nb::kw_only(), nb::arg("slot"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("output", &output, nb::arg("name"), nb::arg("begin") = 0, nb::arg("end") = nb::none())
      .def("expert_counts", &expert_counts);
  def_open<&open_executor>(module, "open_executor");
  def_open<&open_stage>(module, "open_stage");
  nb::class_<LogitsExecutor, DeviceExecutor>(module, "LogitsExecutor")
      .def_prop_ro("block_bytes", &LogitsExecutor::block_bytes)
      .def("copy_block", &copy_block, nb::arg("src"), nb::arg("dst"), nb::call_guard<nb::gil_scoped_release>())
      .def("save_block", &save_block, nb::arg("block"))
      .def("load_block", &load_block, nb::arg("block"), nb::arg("data").noconvert());
  module.def("step_stage", &step_stage, nb::arg("executor"), nb::arg("token_ids").noconvert(),
             nb::arg("seq_lens").noconvert(), nb::arg("past_lens").noconvert(), nb::arg("block_tables").noconvert(),
             nb::arg("logits_indices").noconvert(), nb::arg("received").noconvert());
  nb::class_<NetworkExecutor, LogitsExecutor>(module, "NetworkExecutor");
  nb::class_<CpuExecutor, LogitsExecutor>(module, "CpuExecutor")
      .def(nb::init<const Engine&, std::int64_t, std::int64_t, std::string_view>(), nb::arg("engine"), nb::kw_only(),
           nb::arg("num_threads") = 0, nb::arg("num_blocks") = 0, nb::arg("isa") = "auto", nb::keep_alive<1, 2>())
      .def_prop_ro("num_threads", &CpuExecutor::num_threads)
      .def_prop_ro("isa", &CpuExecutor::isa);
  nb::class_<CpuGroup, LogitsExecutor>(module, "CpuGroup");
  nb::class_<CpuPipeline, LogitsExecutor>(module, "CpuPipeline");
  module.def("time_step", &time_cpu_step, nb::arg("executor"), nb::kw_only(), nb::arg("num_rows"),
             nb::arg("num_tokens") = 1, nb::arg("past_len") = 0, nb::arg("repeats") = 5,
             nb::call_guard<nb::gil_scoped_release>());
  module.def("time_step", &time_cuda_step, nb::arg("executor"), nb::kw_only(), nb::arg("num_rows"),
             nb::arg("num_tokens") = 1, nb::arg("past_len") = 0, nb::arg("repeats") = 5,
             nb::arg("adapters") = std::vector<std::shared_ptr<Adapter>>(), nb::call_guard<nb::gil_scoped_release>());
  def_step<LogitsExecutor, &run_step, &compute>(module);
  def_step<cuda::CudaExecutor, &cuda::run_step, &cuda::compute>(module);
}

}  // namespace tl
