// Bindings of the event loop of an encoder.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/loop.h"
#include "bindings/step.h"
#include "errors.h"
#include "executor/device_executor.h"
#include "executor/embedding.h"
#include "schedule/encoder/loop_config.h"
#include "schedule/step_time.h"

namespace nb = nanobind;

namespace tl {
namespace {

using Rows = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using Polled = std::tuple<std::vector<RequestId>, Rows, nb::typed<nb::list, RequestEnd>>;

struct EncoderOptions {
  int max_batch_size, max_input_len, max_num_tokens;
};

class PyEncoderLoop final : public PyLoop {
 public:
  PyEncoderLoop(DeviceExecutor& executor, const EncoderOptions& options)
      : PyLoop([&] { return make_loop(executor, options); }), engine_(executor.engine()) {}

  std::vector<RequestId> submit(const Int32Array<1>& token_ids, const Int32Array<1>& lengths, std::uint64_t flow,
                                int priority, std::optional<double> timeout) {
    home().check();
    engine_.check_unchanged();
    std::span<const std::int32_t> rest(token_ids.data(), token_ids.size());
    std::vector<RequestId> ids;
    try {
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        const std::int32_t length = lengths.data()[i];
        if (length < 0 || std::cmp_greater(length, rest.size())) {
          throw LimitError("lengths: expected numbers whose sum is that of token_ids, found others");
        }
        RequestSpec spec;
        spec.prompt.assign(rest.begin(), rest.begin() + length);
        spec.max_new_tokens = 0;
        spec.priority = priority;
        spec.flow = flow;
        if (timeout) spec.timeout = duration_of(*timeout);
        ids.push_back(loop().submit(std::move(spec)));
        rest = rest.subspan(static_cast<std::size_t>(length));
      }
    } catch (...) {
      for (const RequestId id : ids) loop().cancel(id);
      throw;
    }
    return ids;
  }

  std::optional<Polled> poll(double timeout) {
    home().check();
    PollStatus status;
    static thread_local EventBatch batch;  // static, so that buffers are swapped with the loop's and keep their memory
    {
      nb::gil_scoped_release release;
      status = loop().poll(batch, duration_of(timeout));
    }
    if (status == PollStatus::kClosed) return std::nullopt;
    std::vector<RequestId> ids;
    std::vector<float> values;
    for (const TokenEvent& event : batch.tokens) {
      ids.push_back(event.id);
      const std::vector<float>& row = static_cast<const EmbeddingOutputs&>(*event.outputs).values;
      values.insert(values.end(), row.begin(), row.end());
    }
    auto copy = std::make_unique_for_overwrite<float[]>(values.size());
    std::ranges::copy(values, copy.get());
    const std::size_t size = ids.empty() ? 0 : values.size() / ids.size();
    Rows rows = owning_array(std::move(copy), ids.size(), size);
    nb::list ends;
    for (RequestEnd& end : batch.ends) ends.append(nb::cast(std::move(end), nb::rv_policy::move));
    return Polled(std::move(ids), std::move(rows), std::move(ends));
  }

 private:
  static EventLoop* make_loop(DeviceExecutor& executor, const EncoderOptions& options) {
    const Manifest& manifest = executor.engine().manifest();
    const auto check = [](const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
      if (value >= low && value <= high) return;
      throw LimitError(std::string(name) + ": expected " + std::to_string(low) + " to " + std::to_string(high) +
                       ", found " + std::to_string(value) + "; stay within what the engine was built for");
    };
    check("max_batch_size", options.max_batch_size, 1, manifest.limits.max_batch_size);
    check("max_num_tokens", options.max_num_tokens, 1, manifest.limits.max_num_tokens);
    check("max_input_len", options.max_input_len, 1,
          std::min<std::int64_t>(manifest.limits.max_input_len, options.max_num_tokens));
    EncoderLoopConfig config;
    config.planner = {.max_batch_size = options.max_batch_size,
                      .max_num_tokens = options.max_num_tokens,
                      .max_input_len = options.max_input_len,
                      .step_seconds = manifest.target.kind == TargetKind::kCpu ? kStepSeconds : 0};
    config.vocab_size = static_cast<int>(manifest.model.vocab_size);
    return new EventLoop(config, executor.make_step_executor(0, options.max_batch_size));
  }

  const Engine& engine_;
};

void init(PyEncoderLoop* self, DeviceExecutor& executor, int max_batch_size, int max_input_len, int max_num_tokens) {
  new (self) PyEncoderLoop(executor, {max_batch_size, max_input_len, max_num_tokens});
}

}  // namespace

void bind_encoder_loop(nb::module_& module) {
  nb::class_<PyEncoderLoop, PyLoop>(module, "EncoderLoop", R"(
      Schedules texts in the steps of an encoder over its executor. Each text is a request.)")
      .def("__init__", &init, nb::arg("executor"), nb::kw_only(), nb::arg("max_batch_size"), nb::arg("max_input_len"),
           nb::arg("max_num_tokens"), nb::keep_alive<1, 2>(), nb::call_guard<nb::gil_scoped_release>(), R"(
               Limits may be tighter than the engine's: texts of a step, tokens of a text, tokens of a step.

               Raises LimitError for a limit beyond the engine's.)")
      .def("submit", &PyEncoderLoop::submit, nb::arg("token_ids").noconvert(), nb::arg("lengths").noconvert(),
           nb::kw_only(), nb::arg("flow"), nb::arg("priority") = 0, nb::arg("timeout").none() = nb::none(), R"(
               Queue texts, whose tokens come one text after the other; returns the ids of their requests at once.

               Texts of a greater ``priority`` are served earlier; those of one priority in turns of the callers' numbers
               ``flow``. ``timeout`` is in seconds. If this raises, none of the texts is embedded: LimitError if one
               exceeds a limit, OverloadedError if too many requests are outstanding, EngineError if the engine's file
               has been written to, or in a fork of the process.)")
      .def("poll", &PyEncoderLoop::poll, nb::arg("timeout"), R"(
          What has ended since the last call, waiting for it at most ``timeout`` seconds; the GIL is released.

          Ids of requests, their embeddings float32[requests, embedding_size], and ends: those of these requests, and of
          others that have no embedding.

          None: the loop is shut down and every end has been delivered.)");
}

}  // namespace tl
