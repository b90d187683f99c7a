#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include "adapters/adapter.h"
#include "backends.h"
#include "bindings/bindings.h"
#include "bindings/network.h"
#include "bindings/step.h"
#include "cpu/beside.h"
#include "cpu/cpu_executor.h"
#include "cpu/cpu_group.h"
#include "cpu/cpu_pipeline.h"
#include "cpu/time_step.h"
#include "cuda/measure/time_step.h"
#include "cuda/step/run_step.h"
#include "cuda/step/side_stream.h"
#include "errors.h"
#include "host/thread_pool.h"
#include "network/network_executor.h"
#include "ranks/place.h"

namespace nb = nanobind;

namespace tl {
namespace {

using ByteRow = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
using FloatRows = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using ByteArray = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::typed<nb::dict, nb::str, std::size_t> memory(const DeviceExecutor& executor) {
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
void def_open(nb::module_& module, const char* name, const char* doc) {
  module.def(
      name,
      [](const std::vector<const Engine*>& ranks, std::int64_t num_blocks, std::int64_t num_threads,
         std::vector<std::string> library_directories, const std::optional<PyNetwork>& network,
         const DeviceExecutor* features_of, int num_loras, std::optional<std::size_t> adapter_bytes,
         std::vector<int> devices, double rank_timeout) {
        OpenOptions options{num_blocks,
                            num_threads,
                            std::move(library_directories),
                            borrow_network(network),
                            features_of,
                            num_loras,
                            adapter_bytes.value_or(std::numeric_limits<std::size_t>::max()),
                            std::move(devices),
                            rank_timeout};
        const nb::gil_scoped_release release;
        return open(ranks, std::move(options));
      },
      nb::arg("ranks"), nb::kw_only(), nb::arg("num_blocks") = 0, nb::arg("num_threads") = 0,
      nb::arg("library_directories") = std::vector<std::string>(), nb::arg("network").none() = nb::none(),
      nb::arg("features_of").none() = nb::none(), nb::arg("num_loras") = 0,
      nb::arg("adapter_bytes").none() = nb::none(), nb::arg("devices") = std::vector<int>(),
      nb::arg("rank_timeout") = OpenOptions().rank_timeout, nb::keep_alive<0, 1>(), nb::keep_alive<0, 6>(), doc);
}

// Runs a step of a pipeline stage. Returns the bytes to send to the next stage, or the logits if it is the last.
std::variant<ByteRow, FloatRows> step_stage(LogitsExecutor& executor, const Int32Array<1>& token_ids,
                                            const Int32Array<1>& seq_lens, const Int32Array<1>& past_lens,
                                            const Int32Array<2>& block_tables, const Int32Array<1>& logits_indices,
                                            const ByteArray& received) {
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
    return owning_array(std::move(made), logits_indices.size(), executor.vocab_size());
  }
  auto bytes = std::make_unique_for_overwrite<std::uint8_t[]>(size * sizeof(float));
  std::memcpy(bytes.get(), made.get(), size * sizeof(float));
  return owning_array(std::move(bytes), size * sizeof(float));
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

nb::typed<nb::list, nb::typed<nb::dict, nb::str, nb::any>> expert_counts(DeviceExecutor& executor) {
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

void give_to_adapters(DeviceExecutor& executor, const std::vector<int>& slabs) { executor.give_to_adapters(slabs); }

void bind_device_executor(nb::module_& module) {
  nb::class_<DeviceExecutor>(module, "DeviceExecutor",
                             "An engine that is loaded on a device of the kind its manifest names.")
      .def_prop_ro("memory", &memory, R"(
          Reserved bytes: ``weights``, ``kv_cache``, ``adapters``, ``workspace`` (on CPUs with all scratch memory).)")
      .def("place_adapter", &DeviceExecutor::place_adapter, nb::arg("adapter"), nb::kw_only(), nb::arg("slot"),
           nb::call_guard<nb::gil_scoped_release>(), R"(
               Put an adapter where steps find it, on a GPU into a slot that no running request has.

               Call this before requests run with the adapter; one thread may do so while steps run. Raises LimitError
               (no such slot), DeviceError.)")
      .def("num_missing_slabs", &DeviceExecutor::num_missing_slabs, nb::arg("slot"),
           "The slabs of the KV cache's memory that a slot needs before an adapter is placed there.")
      .def("give_to_adapters", &give_to_adapters, nb::arg("slabs"), nb::call_guard<nb::gil_scoped_release>(),
           "Take slabs of memory from the KV cache, which the event loop has lent. Raises DeviceError.")
      .def("empty_adapter_slot", &DeviceExecutor::empty_adapter_slot, nb::arg("slot"),
           nb::call_guard<nb::gil_scoped_release>(), R"(
               Make the memory of a slot that no request uses ready for other slots.

               No request may run with the adapter that was there until it is placed again. Raises DeviceError.)")
      .def("take_from_adapters", &DeviceExecutor::take_from_adapters, nb::call_guard<nb::gil_scoped_release>(), R"(
          Give memory that no slot uses back to the KV cache; the slabs that it has again, for the event loop.

          Raises DeviceError.)")
      .def_prop_ro("num_lent_slabs", &DeviceExecutor::num_lent_slabs, "Slabs of the KV cache that adapters have.")
      .def("output", &output, nb::arg("name"), nb::arg("begin") = 0, nb::arg("end") = nb::none(), R"(
          Rows ``begin`` to ``end`` of the output ``name`` of the plan in the last step, as bytes.

          Raises ArgumentError if the plan has no such output, LimitError if the step had fewer rows. The call takes
          turns with steps.)")
      .def("expert_counts", &expert_counts, R"(
          Counts of each router's choices since the engine was loaded: the fields of session.experts.ExpertCounts.

          Layers that other processes compute are left out. Steps go on meanwhile.)");
}

void bind_logits_executors(nb::module_& module) {
  nb::class_<LogitsExecutor, DeviceExecutor>(
      module, "LogitsExecutor", "An executor whose logits come to the host: on CPUs, of a Network, or RemoteStages.")
      .def_prop_ro("block_bytes", &LogitsExecutor::block_bytes,
                   "Bytes of a block of the KV cache: keys and values of all layers.")
      .def("copy_block", &copy_block, nb::arg("src"), nb::arg("dst"), nb::call_guard<nb::gil_scoped_release>(),
           "Copy a block of the KV cache. Like steps, copies take turns. Raises LimitError.")
      .def("save_block", &save_block, nb::arg("block"), "The bytes of a block. Raises LimitError.")
      .def("load_block", &load_block, nb::arg("block"), nb::arg("data").noconvert(),
           "Write the bytes of a block that ``save_block`` returned. Raises LimitError.");
  nb::class_<NetworkExecutor, LogitsExecutor>(
      module, "NetworkExecutor", "An engine whose plan is a network, which has a KV block for each sequence.");
  nb::class_<CpuExecutor, LogitsExecutor>(module, "CpuExecutor", R"(
      Executes the plan of an engine, and owns its KV cache and workspace. Threads may share it: steps take turns.)")
      .def(nb::init<const Engine&, std::int64_t, std::int64_t, std::string_view>(), nb::arg("engine"), nb::kw_only(),
           nb::arg("num_threads") = 0, nb::arg("num_blocks") = 0, nb::arg("isa") = "auto", nb::keep_alive<1, 2>(), R"(
               ``num_threads`` 0: every core this process may use; ``num_blocks`` 0: the cache size of the manifest.

               Raises ArgumentError or LimitError for options that are invalid or do not fit in memory, EngineError if
               this build lacks a kernel.)")
      .def_prop_ro("num_threads", &CpuExecutor::num_threads, "Threads that execute a step.")
      .def_prop_ro("isa", &CpuExecutor::isa, "The instruction set of the kernels.");
  nb::class_<CpuGroup, LogitsExecutor>(
      module, "CpuGroup", "The ranks of an engine for CPUs, each on its own threads. Made by ``open_executor``.");
  nb::class_<CpuPipeline, LogitsExecutor>(
      module, "CpuPipeline", "The stages of an engine for CPUs, each on its own threads. Made by ``open_executor``.");
}

void bind_steps(nb::module_& module) {
  module.def("step_stage", &step_stage, nb::arg("executor"), nb::arg("token_ids").noconvert(),
             nb::arg("seq_lens").noconvert(), nb::arg("past_lens").noconvert(), nb::arg("block_tables").noconvert(),
             nb::arg("logits_indices").noconvert(), nb::arg("received").noconvert(), R"(
                 Like ``step``, for one stage of a pipeline from ``open_stage``; ``received`` is the result of the
                 previous stage.

                 The first stage receives no bytes. Returns the bytes for the next stage, or from the last stage the
                 logits.)");
  module.def("time_step", &time_cpu_step, nb::arg("executor"), nb::kw_only(), nb::arg("num_rows"),
             nb::arg("num_tokens") = 1, nb::arg("past_len") = 0, nb::arg("repeats") = 5,
             nb::call_guard<nb::gil_scoped_release>(), R"(
                 Name and seconds of each instruction of a step, in order: medians of ``repeats`` runs after one to
                 warm up.

                 The step has ``num_rows`` sequences with ``past_len`` tokens in the cache, which is overwritten, and
                 ``num_tokens`` new tokens each. No other step may be in progress. Raises LimitError if the engine has
                 no such step.)");
  module.def("time_step", &time_cuda_step, nb::arg("executor"), nb::kw_only(), nb::arg("num_rows"),
             nb::arg("num_tokens") = 1, nb::arg("past_len") = 0, nb::arg("repeats") = 5,
             nb::arg("adapters") = std::vector<std::shared_ptr<Adapter>>(), nb::call_guard<nb::gil_scoped_release>(),
             R"(
                 Time a step as on CPUs; the sequences run in turn with ``adapters``, which are in their slots
                 already.)");
  def_step<LogitsExecutor, &run_step, &compute>(module);
  def_step<cuda::CudaExecutor, &cuda::run_step, &cuda::compute>(module);
}

}  // namespace

void bind_executor(nb::module_& module) {
  module.attr("SCRATCH_BYTES_PER_THREAD") = kScratchBytesPerThread;
  module.attr("SHARED_SCRATCH_BYTES") = kSharedScratchBytes;
  module.attr("BESIDE_TOKENS") = kBesideTokens;
  module.attr("SIDE_TOKENS") = cuda::kSideTokens;
  bind_device_executor(module);
  bind_logits_executors(module);
  def_open<&open_executor>(module, "open_executor", R"(
      Load the engines of all ranks; the options are those of CpuExecutor, CudaExecutor and NetworkExecutor.

      Each kind of executor ignores the options of the others. The engine of a drafting head reads features that
      ``features_of`` keeps; on a GPU there are ``num_loras`` slots for adapters, which take ``adapter_bytes`` of its
      memory (None: all that they need) and borrow the rest from the KV cache. ``devices`` are the numbers of the
      ranks' GPUs. A rank that reaches a collective ``rank_timeout`` seconds after another ends the step with
      DeviceError. Raises ArgumentError without the network that a NetworkExecutor needs, or without fitting features.)");
  def_open<&open_stage>(module, "open_stage", R"(
      Like ``open_executor``, for the ranks of one stage of a pipeline, whose steps ``step_stage`` runs.)");
  bind_steps(module);
}

}  // namespace tl
