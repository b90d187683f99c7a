// The sampler and beam search for Python: what tests drive without an engine.
#include "bindings/sampling.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>

#include "bindings/bindings.h"
#include "sampling/logit_processors.h"
#include "sampling/philox.h"
#include "sampling/sampler.h"
#include "sampling/truncation.h"

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
std::pair<Tokens, std::vector<float>> truncated(const Row& logits, float temperature, int top_k, float top_p,
                                                float min_p) {
  RowScan scan;
  scan.assign(span_of(logits));
  const char* error = describe_unusable(scan, temperature);
  require(error == nullptr, error == nullptr ? "" : error);
  Candidates candidates;
  truncate(scan, temperature, {top_k, top_p, min_p}, candidates);
  return {candidates.ids, candidates.weights};
}

// A Sampler with the checks of the call that a C++ caller's own bookkeeping makes superfluous.
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

void bind_params(nb::module_& m) {
  nb::class_<SamplingParams>(m, "SamplingParams")
      .def(nb::init<>())
      .def_rw("temperature", &SamplingParams::temperature)
      .def_rw("top_k", &SamplingParams::top_k)
      .def_rw("top_p", &SamplingParams::top_p)
      .def_rw("min_p", &SamplingParams::min_p)
      .def_rw("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_rw("presence_penalty", &SamplingParams::presence_penalty)
      .def_rw("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_rw("seed", &SamplingParams::seed)
      .def_rw("max_tokens", &SamplingParams::max_tokens)
      .def_rw("min_tokens", &SamplingParams::min_tokens)
      .def_rw("ignore_eos", &SamplingParams::ignore_eos)
      .def_rw("end_ids", &SamplingParams::end_ids)
      .def_rw("stop_token_ids", &SamplingParams::stop_token_ids)
      .def_rw("bad_words", &SamplingParams::bad_words)
      .def_rw("logit_bias", &SamplingParams::logit_bias)
      .def_rw("allowed_token_ids", &SamplingParams::allowed_token_ids, nb::arg().none())
      .def_rw("logprobs", &SamplingParams::logprobs, nb::arg().none())
      .def_rw("prompt_logprobs", &SamplingParams::prompt_logprobs, nb::arg().none())
      .def("violations", [](const SamplingParams& p, int vocab_size) { return violations(p, vocab_size); });
}

void bind_results(nb::module_& m) {
  nb::enum_<StopCause>(m, "StopCause")
      .value("NONE", StopCause::kNone)
      .value("END_ID", StopCause::kEndId)
      .value("STOP_TOKEN", StopCause::kStopToken)
      .value("MAX_TOKENS", StopCause::kMaxTokens);
  nb::class_<RowLogprobs>(m, "RowLogprobs")
      .def_prop_ro("logprob", [](const RowLogprobs& r) { return r.chosen.logprob; })
      .def_ro("rank", &RowLogprobs::rank)
      .def_prop_ro("top", [](const RowLogprobs& r) {
        std::vector<std::pair<TokenId, float>> out;
        for (const auto& [token, logprob] : r.top) out.emplace_back(token, logprob);
        return out;
      });
  nb::class_<SampledToken>(m, "SampledToken")
      .def_ro("error", &SampledToken::error)
      .def_ro("token", &SampledToken::token)
      .def_ro("stop_cause", &SampledToken::stop_cause)
      .def_prop_ro("logprobs",
                   [](const SampledToken& s) { return s.has_logprobs ? std::optional(s.logprobs) : std::nullopt; });
}

}  // namespace

void bind_sampling(nb::module_& module) {
  nb::module_ m = module.def_submodule("sampling", "The CPU device's sampler.");
  bind_params(m);
  m.attr("MAX_STOP_TOKENS") = SamplingLimits::kMaxStopTokens;
  m.attr("MAX_LOGIT_BIAS_ENTRIES") = SamplingLimits::kMaxLogitBiasEntries;
  m.attr("MAX_BAD_WORDS") = SamplingLimits::kMaxBadWords;
  m.attr("MAX_BAD_WORD_LENGTH") = SamplingLimits::kMaxBadWordLength;
  bind_results(m);
  m.def("philox4x32_10", &philox4x32_10);
  m.def("token_uniform", &token_uniform, nb::arg("seed"), nb::arg("token_index"), nb::arg("sequence_index") = 0);
  m.def("processed", &processed, nb::arg("params"), nb::arg("prompt"), nb::arg("generated"), nb::arg("logits"));
  m.def("truncated", &truncated, nb::arg("logits"), nb::arg("temperature") = 1.0f, nb::arg("top_k") = 0,
        nb::arg("top_p") = 1.0f, nb::arg("min_p") = 0.0f);
  nb::class_<CheckedSampler>(m, "Sampler")
      .def(nb::init<int, int>(), nb::arg("num_slots"), nb::arg("vocab_size"))
      .def("set_slot", &CheckedSampler::set_slot, nb::arg("slot"), nb::arg("params"), nb::arg("prompt"),
           nb::arg("generated") = Tokens{}, nb::arg("sequence_index") = 0)
      .def("clear_slot", &CheckedSampler::clear_slot, nb::arg("slot"))
      .def("sample_rows", &CheckedSampler::sample_rows, nb::arg("slots"), nb::arg("logits"))
      .def("prompt_logprobs", &CheckedSampler::prompt_logprobs, nb::arg("logits"), nb::arg("next_tokens"),
           nb::arg("num_top"));
  bind_beam_search(m);
}

}  // namespace tl
