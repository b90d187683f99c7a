// Bindings of pipeline stages on GPUs of several processes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/python_calls.h"
#include "bindings/step.h"
#include "cuda/ranks/last_stage.h"
#include "cuda/ranks/stage_worker.h"
#include "errors.h"
#include "ranks/check_ranks.h"

namespace nb = nanobind;

namespace tl {
namespace {

using cuda::LastStage;
using cuda::StageWorker;
using cuda::StepShape;
using ByteArray = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool>;
using Engines = std::vector<const Engine*>;

constexpr std::size_t kWordsOfCopy = 3;  // kind, source, destination

Shape tuple_of(const StepShape& shape) {
  return {shape.num_tokens,        shape.num_seqs,   shape.num_decode_seqs,
          shape.num_decode_tokens, shape.num_logits, shape.decode_only};
}

StepShape shape_of(const Shape& shape) {
  const auto& [num_tokens, num_seqs, num_decode_seqs, num_decode_tokens, num_logits, decode_only] = shape;
  return {.num_tokens = num_tokens,
          .num_seqs = num_seqs,
          .num_decode_seqs = num_decode_seqs,
          .num_decode_tokens = num_decode_tokens,
          .num_logits = num_logits,
          .decode_only = decode_only};
}

std::vector<CopyOrder> copies_of(const Int32Array<2>& words) {
  if (words.shape(1) != kWordsOfCopy) throw std::invalid_argument("copies: expected rows of three numbers");
  std::vector<CopyOrder> copies;
  for (std::size_t row = 0; row < words.shape(0); ++row) {
    const std::int32_t* const copy = words.data() + row * kWordsOfCopy;
    copies.push_back({static_cast<CopyKind>(copy[0]), copy[1], copy[2]});
  }
  return copies;
}

class PyEarlierStages : public nb::object {
  NB_OBJECT(PyEarlierStages, nb::object, "trtllm_lite.runtime.interfaces.EarlierStages", is_any)
};

// Forwards to a Python object of the class EarlierStages in trtllm_lite/runtime/interfaces.py.
class PythonStageCalls final : public cuda::StageCalls {
 public:
  explicit PythonStageCalls(nb::object stages) : stages_(std::move(stages)) {}
  ~PythonStageCalls() override {
    const nb::gil_scoped_acquire acquire;
    stages_.reset();
  }

  void step(std::uint64_t number, std::span<const CopyOrder> copies, const StepShape& shape,
            std::span<const std::byte> inputs) override {
    std::vector<std::int32_t> words;
    for (const CopyOrder& copy : copies) {
      words.insert(words.end(), {static_cast<std::int32_t>(copy.kind), copy.src, copy.dst});
    }
    call_python([&] {
      stages_.attr("step")(number, array_over(words.data(), copies.size(), kWordsOfCopy), tuple_of(shape),
                           bytes(inputs));
    });
  }
  void capture(const StepShape& shape, std::span<const std::byte> inputs) override {
    call_python([&] { stages_.attr("capture")(tuple_of(shape), bytes(inputs)); });
  }
  void check(std::uint64_t step) override {
    call_python([&] { stages_.attr("check")(step); });
  }
  void check_ended(std::uint64_t step) override {
    call_python([&] { stages_.attr("check_ended")(step); });
  }
  void fail(const std::string& why) noexcept override {
    try {
      call_python([&] { stages_.attr("fail")(why); });
    } catch (const std::exception&) {  // the failing process reports its own reason
    }
  }
  MemoryUse memory() const override {
    MemoryUse use;
    call_python([&] { use = memory_use(stages_.attr("memory")); });
    return use;
  }

 private:
  static nb::object bytes(std::span<const std::byte> inputs) {
    return array_over(reinterpret_cast<const std::uint8_t*>(inputs.data()), inputs.size());
  }

  nb::object stages_;
};

std::span<const std::byte> span_of(const ByteArray& inputs) {
  return std::as_bytes(std::span(inputs.data(), inputs.size()));
}

std::chrono::nanoseconds nanoseconds_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

std::vector<cuda::NcclId> ids_of(const std::vector<nb::bytes>& ids, const Engine& engine) {
  std::vector<cuda::NcclId> found;
  for (const nb::bytes& bytes : ids) {
    cuda::NcclId id{};
    std::memcpy(id.bytes, bytes.c_str(), std::min(bytes.size(), sizeof id.bytes));
    found.push_back(id);
  }
  const RankMapping& mapping = engine.manifest().mapping;
  if (std::cmp_equal(found.size(), mapping.tp_size * mapping.pp_size)) return found;
  throw ArgumentError("ids: expected one for each rank of the engine, found " + std::to_string(found.size()));
}

// Ids by which the stages of different processes connect.
std::vector<nb::bytes> nccl_ids(std::size_t count, const std::vector<std::string>& library_directories) {
  std::vector<nb::bytes> ids;
  for (const cuda::NcclId& id : cuda::make_nccl_ids(cuda::nccl(library_directories), count)) {
    ids.emplace_back(id.bytes, sizeof id.bytes);
  }
  return ids;
}

template <typename Stage>
void connect(Stage& stage, const Engine& engine, const std::vector<nb::bytes>& ids,
             const std::vector<std::string>& library_directories) {
  const std::vector<cuda::NcclId> all = ids_of(ids, engine);
  const nb::gil_scoped_release release;
  stage.connect(cuda::nccl(library_directories), all);
}

nb::typed<nb::dict, nb::str, std::size_t> memory_of(const StageWorker& worker) {
  const MemoryUse use = worker.memory();
  nb::dict result;
  result["weights"] = use.weights;
  result["kv_cache"] = use.kv_cache;
  result["workspace"] = use.workspace;
  return result;
}

void bind_worker(nb::module_& module) {
  const auto init = [](StageWorker* self, const Engines& ranks, const std::vector<int>& devices,
                       std::int64_t num_blocks, std::int64_t num_host_blocks,
                       const std::vector<std::string>& library_directories, double rank_timeout) {
    const nb::gil_scoped_release release;
    check_stage(ranks);
    new (self)
        StageWorker(ranks, devices, num_blocks, num_host_blocks, library_directories, nanoseconds_of(rank_timeout));
  };
  const auto step = [](StageWorker& worker, std::uint64_t number, const Int32Array<2>& copies, const Shape& shape,
                       const ByteArray& inputs) {
    const std::vector<CopyOrder> orders = copies_of(copies);
    const nb::gil_scoped_release release;
    worker.step(number, orders, shape_of(shape), span_of(inputs));
  };
  const auto capture = [](StageWorker& worker, const Shape& shape, const ByteArray& inputs) {
    const nb::gil_scoped_release release;
    worker.capture(shape_of(shape), span_of(inputs));
  };
  nb::class_<StageWorker>(module, "StageWorker", R"(
      A stage, other than the last, of an engine for GPUs, in a process of its own.

      One thread calls ``connect``, ``capture`` and ``step``; others may call ``watch``, ``has_ended`` and ``close``.)")
      .def("__init__", init, nb::arg("ranks"), nb::kw_only(), nb::arg("devices"), nb::arg("num_blocks"),
           nb::arg("num_host_blocks"), nb::arg("library_directories"), nb::arg("rank_timeout"), nb::keep_alive<1, 2>(),
           "``ranks`` are the engines of the stage. Raises the errors of ``open_executor``.")
      .def_prop_ro("memory", &memory_of, "Reserved bytes: ``weights``, ``kv_cache``, ``workspace``.")
      .def("connect", &connect<StageWorker>, nb::arg("engine"), nb::arg("ids"), nb::arg("library_directories"),
           "The counterpart of ``LastStage.connect``.")
      .def("capture", capture, nb::arg("shape"), nb::arg("inputs").noconvert(), R"(
          Capture the graph of a decode-only step, before the first step. Raises LimitError, DeviceError.)")
      .def("step", step, nb::arg("number"), nb::arg("copies").noconvert(), nb::arg("shape"),
           nb::arg("inputs").noconvert(), R"(
               Put a step on the streams of the GPUs; ``watch`` reports a failure.

               ``copies`` has a row for each KV block that is copied first: kind, source, destination. ``shape`` is
               num_tokens, num_seqs, num_decode_seqs, num_decode_tokens, num_logits, and whether the step is
               decode-only; ``inputs`` are packed for it.)")
      .def("watch", &StageWorker::watch, nb::call_guard<nb::gil_scoped_release>(),
           "Wait until ``close`` is called. Raises DeviceError as soon as a step fails.")
      .def("has_ended", &StageWorker::has_ended, nb::arg("number"), nb::call_guard<nb::gil_scoped_release>(),
           "Whether the step of that number, or a later one, has ended.")
      .def("close", &StageWorker::close, nb::call_guard<nb::gil_scoped_release>(), "Reject all further steps.");
}

void bind_last_stage(nb::module_& module) {
  const auto init = [](LastStage* self, const Engines& ranks, PyEarlierStages stages, const std::vector<int>& devices,
                       std::int64_t num_blocks, const std::vector<std::string>& library_directories,
                       double rank_timeout) {
    auto others = std::make_unique<PythonStageCalls>(std::move(stages));
    const nb::gil_scoped_release release;
    check_stage(ranks);
    new (self)
        LastStage(ranks, devices, num_blocks, library_directories, nanoseconds_of(rank_timeout), std::move(others));
  };
  nb::class_<LastStage, DeviceExecutor>(
      module, "LastStage", "The last stage of an engine for GPUs, whose other stages compute in other processes.")
      .def("__init__", init, nb::arg("ranks"), nb::arg("stages"), nb::kw_only(), nb::arg("devices"),
           nb::arg("num_blocks"), nb::arg("library_directories"), nb::arg("rank_timeout"), nb::keep_alive<1, 2>(),
           "``ranks`` are the engines of the stage. Raises the errors of ``open_executor``.")
      .def("connect", &connect<LastStage>, nb::arg("engine"), nb::arg("ids"), nb::arg("library_directories"), R"(
          Connect with the other stages, which connect at the same time, and wait for them.

          ``ids`` come from ``nccl_ids``, with one for each rank of all stages. Raises DeviceError.)");
}

}  // namespace

void bind_gpu_stages(nb::module_& module) {
  module.def("nccl_ids", &nccl_ids, nb::arg("count"), nb::arg("library_directories"),
             "Ids by which ranks of several processes find each other. Raises DeviceError without NCCL.");
  bind_worker(module);
  bind_last_stage(module);
}

}  // namespace tl
