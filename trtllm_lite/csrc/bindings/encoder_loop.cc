// Bindings of the event loop of an encoder.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
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
#include "engine/module.h"
#include "errors.h"
#include "executor/device_executor.h"
#include "executor/embedding.h"
#include "schedule/encoder/loop_config.h"
#include "schedule/step_time.h"

namespace nb = nanobind;

namespace tl {
namespace {

template <typename T, typename... Axes>
using Array = nb::ndarray<nb::numpy, T, Axes...>;
using Polled =
    std::tuple<Array<std::int64_t, nb::ndim<1>>, Array<std::uint8_t, nb::ndim<1>>, Array<std::int32_t, nb::ndim<1>>,
               Array<double, nb::ndim<2>>, Array<float, nb::ndim<2>>, std::map<RequestId, std::string>>;

// The ends of a batch, and the embeddings of those texts that have one, in the same order.
Polled arrays_of(const EventBatch& batch) {
  const std::size_t count = batch.ends.size();
  auto ids = std::make_unique_for_overwrite<std::int64_t[]>(count);
  auto reasons = std::make_unique_for_overwrite<std::uint8_t[]>(count);
  auto lengths = std::make_unique_for_overwrite<std::int32_t[]>(count);
  auto seconds = std::make_unique_for_overwrite<double[]>(2 * count);
  std::map<RequestId, std::string> messages;
  for (std::size_t i = 0; i < count; ++i) {
    const RequestEnd& end = batch.ends[i];
    ids[i] = static_cast<std::int64_t>(end.id);
    reasons[i] = static_cast<std::uint8_t>(end.reason);
    lengths[i] = end.timings.num_prompt_tokens;
    seconds[2 * i] = end.timings.queue_seconds;
    seconds[2 * i + 1] = end.timings.total_seconds;
    if (end.reason == FinishReason::kError) messages.emplace(end.id, end.message);
  }
  const auto made_of = [](const TokenEvent& event) -> const EmbeddingOutputs& {
    return static_cast<const EmbeddingOutputs&>(*event.outputs);
  };
  const std::size_t size = batch.tokens.empty() ? 0 : made_of(batch.tokens.front()).size;
  std::size_t num_floats = 0;
  for (const TokenEvent& event : batch.tokens) num_floats += made_of(event).values.size();
  const std::size_t num_rows = size == 0 ? 0 : num_floats / size;
  auto rows = std::make_unique_for_overwrite<float[]>(num_floats);
  float* next = rows.get();
  for (const TokenEvent& event : batch.tokens) next = std::ranges::copy(made_of(event).values, next).out;
  return {owning_array(std::move(ids), count),           owning_array(std::move(reasons), count),
          owning_array(std::move(lengths), count),       owning_array(std::move(seconds), count, std::size_t{2}),
          owning_array(std::move(rows), num_rows, size), std::move(messages)};
}

struct EncoderOptions {
  int max_batch_size, max_input_len, max_num_tokens;
};

class PyEncoderLoop final : public PyLoop {
 public:
  PyEncoderLoop(DeviceExecutor& executor, const EncoderOptions& options)
      : PyLoop([&] { return make_loop(executor, options); }), engine_(executor.engine()) {}

  RequestId submit(const Int32Array<1>& token_ids, const Int32Array<1>& lengths, std::uint64_t flow, int priority,
                   std::optional<double> timeout, const std::vector<std::shared_ptr<PromptRows>>& rows) {
    home().check();
    engine_.check_unchanged();
    std::span rest(token_ids.data(), token_ids.size());
    const std::span all(lengths.data(), lengths.size());
    if (!rows.empty() && rows.size() != all.size()) {
      throw LimitError("rows: expected those of " + std::to_string(all.size()) + " images, found " +
                       std::to_string(rows.size()));
    }
    const nb::gil_scoped_release release;
    std::vector<RequestSpec> specs;
    for (const std::int32_t length : all) {
      if (length < 0 || std::cmp_greater(length, rest.size())) {
        throw LimitError("lengths: expected numbers whose sum is that of token_ids, found others");
      }
      const auto text = rest.first(static_cast<std::size_t>(length));
      rest = rest.subspan(text.size());
      RequestSpec& spec = specs.emplace_back();
      spec.prompt.assign(text.begin(), text.end());
      if (!rows.empty()) spec.rows = rows[specs.size() - 1];
      spec.max_new_tokens = 0;
      spec.priority = priority;
      spec.flow = flow;
      if (timeout) spec.timeout = duration_of(*timeout);
    }
    return loop().submit_all(std::move(specs));
  }

  std::optional<Polled> poll(double timeout) {
    static thread_local EventBatch batch;  // static, so that buffers are swapped with the loop's and keep their memory
    if (poll_into(batch, timeout) == PollStatus::kClosed) return std::nullopt;
    return arrays_of(batch);
  }

 private:
  static EventLoop* make_loop(DeviceExecutor& executor, const EncoderOptions& options) {
    const Manifest& manifest = executor.engine().manifest();
    check_limit("max_batch_size", options.max_batch_size, 1, manifest.limits.max_batch_size);
    check_limit("max_num_tokens", options.max_num_tokens, 1, manifest.limits.max_num_tokens);
    check_limit("max_input_len", options.max_input_len, 1,
                std::min<std::int64_t>(manifest.limits.max_input_len, options.max_num_tokens));
    EncoderLoopConfig config;
    config.planner = {.max_batch_size = options.max_batch_size,
                      .max_num_tokens = options.max_num_tokens,
                      .max_input_len = options.max_input_len,
                      .step_seconds = manifest.target.kind == TargetKind::kCpu ? kStepSeconds : 0};
    config.vocab_size = static_cast<int>(manifest.model.vocab_size);
    config.token_row_bytes = token_row_bytes(only_module(manifest));
    config.tokens_per_row = only_module(manifest).tokens_per_row;
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
           nb::kw_only(), nb::arg("flow"), nb::arg("priority") = 0, nb::arg("timeout").none() = nb::none(),
           nb::arg("rows") = std::vector<std::shared_ptr<PromptRows>>(), R"(
               Queue texts, whose tokens come one text after the other. The ids of their requests are consecutive; the
               first is returned at once.

               Texts of a greater ``priority`` are served earlier; those of one priority in turns of the callers, whose
               numbers are ``flow``. ``timeout`` is in seconds. A vision tower takes the ``rows`` of each image, patches
               that take the place of its tokens. If this raises, none of the texts is embedded: LimitError if one
               exceeds a limit, OverloadedError if too many requests are outstanding, EngineError if the engine's file
               has been written to, or in a fork of the process.)")
      .def("poll", &PyEncoderLoop::poll, nb::arg("timeout"), R"(
          What has ended since the last call, waiting for it at most ``timeout`` seconds; the GIL is released.

          Of n texts: ids int64[n]; reasons uint8[n], values of FinishReason, of which END_ID stands for an embedding;
          numbers of tokens int32[n]; seconds float64[n, 2] in the queue and in all; the embeddings
          float32[rows, embedding_size], in order, one row of a text and some of an image; and the messages of errors by
          id.

          None: the loop is shut down and every end has been delivered.)");
}

}  // namespace tl
