// Bindings of what an event loop delivers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/sampling.h"
#include "sampling/row_sampler.h"
#include "schedule/loop/event_loop.h"

namespace nb = nanobind;

namespace tl {
namespace {

const RequestOutputs* outputs_of(const TokenEvent& event) {
  return static_cast<const RequestOutputs*>(event.outputs.get());
}

using OptionalRows = std::optional<nb::ndarray<nb::numpy, float, nb::ndim<2>>>;

OptionalRows array_of(std::span<const float> values, std::size_t columns) {
  if (values.empty()) return std::nullopt;
  auto copy = std::make_unique<float[]>(values.size());
  std::ranges::copy(values, copy.get());
  float* pointer = copy.release();
  const nb::capsule owner(pointer, [](void* p) noexcept { std::unique_ptr<float[]>(static_cast<float*>(p)); });
  return OptionalRows(std::in_place, pointer, std::initializer_list<std::size_t>{values.size() / columns, columns},
                      owner);
}

// float32[rows, vocab_size], or None.
OptionalRows context_logits(const TokenEvent& event) {
  const RequestOutputs* outputs = outputs_of(event);
  if (outputs == nullptr) return std::nullopt;
  const LogitRows& logits = outputs->context_logits;
  return array_of({logits.values.get(), logits.num_rows * outputs->vocab_size}, outputs->vocab_size);
}

// float32[rows, vocab_size], or None. A sequence may have ended before the last tokens sampled for it, which are left
// out.
OptionalRows generation_logits(const TokenEvent& event) {
  const RequestOutputs* outputs = outputs_of(event);
  if (outputs == nullptr || outputs->generation_logits.empty()) return std::nullopt;
  const auto num_values = static_cast<std::size_t>(event.tokens.size()) * outputs->vocab_size;
  return array_of(std::span(outputs->generation_logits).first(num_values), outputs->vocab_size);
}

// The log probabilities of each token; empty if the request did not ask for them.
std::vector<RowLogprobs> logprobs(const TokenEvent& event) {
  const RequestOutputs* outputs = outputs_of(event);
  if (outputs == nullptr || outputs->logprobs.empty()) return {};
  return {outputs->logprobs.begin(), outputs->logprobs.begin() + event.tokens.size()};
}

}  // namespace

void bind_events(nb::module_& module) {
  nb::enum_<FinishReason>(module, "FinishReason", "The reason why a request ended.")
      .value("END_ID", FinishReason::kEndId)
      .value("STOP_SEQUENCE", FinishReason::kStopSequence)
      .value("LENGTH", FinishReason::kLength)
      .value("CANCELLED", FinishReason::kCancelled)
      .value("TIMED_OUT", FinishReason::kTimedOut)
      .value("ERROR", FinishReason::kError);
  nb::class_<RequestTimings>(module, "RequestTimings", R"(
      Times in seconds from submission; ``seconds_per_token`` is a mean over the tokens after the first.)")
      .def(nb::init<>())
      .def_ro("queue_seconds", &RequestTimings::queue_seconds)
      .def_ro("first_token_seconds", &RequestTimings::first_token_seconds)
      .def_ro("seconds_per_token", &RequestTimings::seconds_per_token)
      .def_ro("total_seconds", &RequestTimings::total_seconds)
      .def_ro("num_prompt_tokens", &RequestTimings::num_prompt_tokens)
      .def_ro("num_cached_tokens", &RequestTimings::num_cached_tokens)
      .def_ro("num_generated_tokens", &RequestTimings::num_generated_tokens)
      .def_ro("num_preemptions", &RequestTimings::num_preemptions);
  nb::class_<TokenEvent>(module, "TokenEvent", R"(
      A step's result for a request: outputs, and ``tokens``, the first of which is the request's number ``index``.

      Without ``has_outputs`` there are only tokens.)")
      .def_ro("request_id", &TokenEvent::id)
      .def_prop_ro("tokens",
                   [](const TokenEvent& e) { return std::vector<std::int32_t>(e.tokens.begin(), e.tokens.end()); })
      .def_ro("index", &TokenEvent::index)
      .def_prop_ro("has_outputs", [](const TokenEvent& e) { return e.outputs != nullptr; })
      .def_prop_ro("context_logits", &context_logits, nb::rv_policy::automatic, R"(
          [positions, vocab_size]; the events of a request hold them for each prompt position once, in order.)")
      .def_prop_ro("generation_logits", &generation_logits, nb::rv_policy::automatic,
                   "[tokens, vocab_size]: the logits that the tokens were sampled from.")
      .def_prop_ro("logprobs", &logprobs, "Log probabilities by token; empty if they were not requested.")
      .def_prop_ro(
          "prompt_logprobs",
          [](const TokenEvent& e) { return e.outputs ? outputs_of(e)->prompt_logprobs : std::vector<RowLogprobs>(); },
          "Log probabilities of prompt tokens, in order, from the second token on.")
      .def_prop_ro(
          "hypotheses",
          [](const TokenEvent& e) {
            return e.outputs ? sampling_bindings::scored_tokens(outputs_of(e)->hypotheses)
                             : sampling_bindings::ScoredTokens();
          },
          R"(
              The sequences that a beam search found, best first: generated tokens and score. Set only in its last
              event.)");
  nb::class_<RequestEnd>(module, "RequestEnd",
                         "The last event of every request. ``message`` describes the error if the reason is ERROR.")
      .def_ro("request_id", &RequestEnd::id)
      .def_ro("reason", &RequestEnd::reason)
      .def_ro("message", &RequestEnd::message)
      .def_ro("timings", &RequestEnd::timings);
}

}  // namespace tl
