// Lets tests drive the sampler by hand.
#include "bindings/sampling.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>

#include "bindings/testing/testing.h"
#include "sampling/logit_processors.h"
#include "sampling/philox.h"
#include "sampling/sampler.h"
#include "sampling/truncation.h"
#include "schedule/request.h"

namespace nb = nanobind;

namespace tl {
namespace {

using namespace sampling_bindings;

SlotState make_slot(const SamplingParams& params, const Tokens& prompt, const Tokens& generated,
                    std::uint32_t sequence_index, int vocab_size) {
  throw_if_any(violations(params, vocab_size));
  for (const Tokens& tokens : {prompt, generated}) {
    if (auto message = out_of_vocabulary("tokens", tokens, vocab_size)) throw LimitError(*message);
  }
  return SlotState(params, prompt, generated, sequence_index);
}

// The processed logits of a sequence, as a list.
std::vector<float> processed(const SamplingParams& params, const Tokens& prompt, const Tokens& generated,
                             const Row& logits) {
  const auto slot = make_slot(params, prompt, generated, 0, static_cast<int>(logits.size()));
  std::vector<float> out;
  const auto result = process_logits(slot, span_of(logits), out);
  return {result.begin(), result.end()};
}

// Tokens that stay in the draw and their softmax weights relative to the most likely token's.
std::pair<Tokens, std::vector<float>> truncated(const Row& logits, const SamplingParams& params) {
  RowScan scan;
  scan.assign(span_of(logits));
  const char* error = describe_unusable(scan, params.temperature);
  require(error == nullptr, error == nullptr ? "" : error);
  Candidates candidates;
  truncate(scan, params, candidates);
  return {candidates.ids, candidates.weights};
}

// A Sampler that checks its calls. C++ callers need no checks, because they keep track of its state.
class CheckedSampler {
 public:
  CheckedSampler(int num_slots, int vocab_size)
      : sampler_((check_sizes(num_slots, vocab_size), num_slots), vocab_size) {}

  void set_slot(int slot, const SamplingParams& params, const Tokens& prompt, const Tokens& generated,
                std::uint32_t sequence_index) {
    check_slot(slot);
    throw_if_any({sampler_.set_slot(slot, params, prompt, generated, sequence_index)});
  }

  void clear_slot(int slot) {
    check_slot(slot);
    sampler_.clear_slot(slot);
  }

  std::vector<SampledToken> sample_rows(const std::vector<int>& slots, const Rows& logits) {
    check_rows(logits, slots.size());
    for (int slot : slots) {
      check_slot(slot);
      require(sampler_.slot(slot) != nullptr, "slot " + std::to_string(slot) + " must be set first; call set_slot");
    }
    nb::gil_scoped_release release;
    std::vector<SampledToken> out(slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) sampler_.sample_row(slots[i], row_of(logits, i), workspace_, out[i]);
    return out;
  }

  std::vector<RowLogprobs> prompt_logprobs(const Rows& logits, const Tokens& next_tokens, int num_top) {
    check_rows(logits, next_tokens.size());
    std::vector<RowLogprobs> out(next_tokens.size());
    throw_if_any({sampler_.prompt_logprobs({logits.data(), logits.size()}, next_tokens, num_top, workspace_, out)});
    return out;
  }

 private:
  static void check_sizes(int num_slots, int vocab_size) {
    require(num_slots >= 1 && vocab_size >= 1, "num_slots and vocab_size must be at least 1");
  }
  void check_slot(int slot) const {
    require(slot >= 0 && slot < sampler_.num_slots(), "slot must be from 0 to " +
                                                          std::to_string(sampler_.num_slots() - 1) + ", not " +
                                                          std::to_string(slot) + "; make a larger Sampler");
  }
  void check_rows(const Rows& logits, std::size_t num_rows) const {
    require(logits.shape(0) == num_rows && logits.shape(1) == static_cast<std::size_t>(sampler_.vocab_size()),
            "logits must have shape [" + std::to_string(num_rows) + ", " + std::to_string(sampler_.vocab_size()) +
                "], not [" + std::to_string(logits.shape(0)) + ", " + std::to_string(logits.shape(1)) + "]");
  }

  Sampler sampler_;
  SamplerWorkspace workspace_;
};

// The stop rule of the event loop for the newest of `generated`.
std::optional<FinishReason> finish_reason(const SamplingParams& params, const Tokens& prompt, const Tokens& generated,
                                          std::vector<Tokens> stop_sequences) {
  require(!generated.empty(), "generated must hold a token");
  Request request(0,
                  {.prompt = prompt,
                   .max_new_tokens = params.max_tokens,
                   .min_new_tokens = params.min_tokens,
                   .end_ids = ending_tokens(params),
                   .stop_sequences = std::move(stop_sequences)},
                  Clock::now());
  request.tokens.insert(request.tokens.end(), generated.begin(), generated.end());
  return request.finish_reason();
}

}  // namespace

void bind_sampler(nb::module_& m) {
  nb::class_<SampledToken>(m, "SampledToken", "The result of one row; ``token`` is meaningful if ``error`` is empty.")
      .def_ro("error", &SampledToken::error)
      .def_ro("token", &SampledToken::token)
      .def_prop_ro("logprobs",
                   [](const SampledToken& s) { return s.has_logprobs ? std::optional(s.logprobs) : std::nullopt; });
  m.def("philox4x32_10", &philox4x32_10, nb::arg("counter"), nb::arg("key"), "Four random 32-bit words.");
  m.def("token_uniform", &token_uniform, nb::arg("seed"), nb::arg("token_index"), nb::arg("sequence_index") = 0,
        "The random number in [0, 1) that selects a sequence's token.");
  m.def("processed", &processed, nb::arg("params"), nb::arg("prompt"), nb::arg("generated"), nb::arg("logits"),
        "A row of logits [vocab_size] after penalties, bias and bans.");
  m.def("truncated", &truncated, nb::arg("logits"), nb::arg("params"),
        "Tokens that stay in the draw, and their weights relative to the most likely one's.");
  nb::class_<CheckedSampler>(m, "Sampler", "Slots of sequences, and the sampling of their next tokens.")
      .def(nb::init<int, int>(), nb::arg("num_slots"), nb::arg("vocab_size"))
      .def("set_slot", &CheckedSampler::set_slot, nb::arg("slot"), nb::arg("params"), nb::arg("prompt"),
           nb::arg("generated") = Tokens{}, nb::arg("sequence_index") = 0,
           "Puts a sequence into a slot, in place of any sequence there.")
      .def("clear_slot", &CheckedSampler::clear_slot, nb::arg("slot"))
      .def("sample_rows", &CheckedSampler::sample_rows, nb::arg("slots"), nb::arg("logits"),
           "The next token of each slot from its row of ``logits`` [slots, vocab_size].")
      .def("prompt_logprobs", &CheckedSampler::prompt_logprobs, nb::arg("logits"), nb::arg("next_tokens"),
           nb::arg("num_top"), R"(
               Log probabilities of prompt tokens; ``logits`` [len(next_tokens), vocab_size] are those of the
               positions before.)");
  m.def("finish_reason", &finish_reason, nb::arg("params"), nb::arg("prompt"), nb::arg("generated"),
        nb::arg("stop_sequences") = std::vector<Tokens>(),
        "The reason why the event loop ends a request with the newest ``generated`` token, or None.");
}

}  // namespace tl
