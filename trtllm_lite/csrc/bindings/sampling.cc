// Bindings of sampling parameters, and of log probabilities.
#include "bindings/sampling.h"

#include <nanobind/stl/optional.h>

#include "bindings/bindings.h"
#include "sampling/logprobs.h"
#include "sampling/number_rules.h"

namespace nb = nanobind;

namespace tl {
namespace {

using namespace sampling_bindings;

using TokenIds = nb::typed<nb::iterable, TokenId>;

// Converts token ids from Python, and names an id that is no int32: nanobind would only say that types do not fit.
std::vector<TokenId> token_ids(const char* name, const TokenIds& given) {
  std::vector<TokenId> ids;
  for (const nb::handle item : given) {
    int overflow = 0;
    const long long id = PyLong_AsLongLongAndOverflow(item.ptr(), &overflow);
    if (id == -1 && PyErr_Occurred()) nb::raise_python_error();
    if (overflow != 0 || id < INT32_MIN || id > INT32_MAX) {
      throw ArgumentError(std::string(name) + ": expected token ids of the vocabulary, found " +
                          nb::cast<std::string>(nb::str(item)) + ", which exceeds 32 bits");
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

// Unifies what clients write in several ways: a temperature near 0, by which the sampler could not divide, means
// greedy decoding (0), and -1 turns a number off, as in Hugging Face and vLLM.
template <class T>
T meant(T given, const NumberRule<T>& rule) {
  if (rule.minus_one_is_off && given == -1) return rule.off;
  return rule.or_zero && given > 0 && given < rule.low ? 0 : given;
}

void def_number(nb::class_<SamplingParams>& type, float SamplingNumbers::* member, const NumberRule<float>& rule) {
  type.def_prop_rw(
      rule.name, [member](const SamplingParams& params) { return params.*member; },
      [member, rule](SamplingParams& params, float given) { params.*member = meant(given, rule); });
}

// JSON has no separate type for whole numbers, so 50.0 counts as 50.
void def_number(nb::class_<SamplingParams>& type, int SamplingNumbers::* member, const NumberRule<int>& rule) {
  type.def_prop_rw(
      rule.name, [member](const SamplingParams& params) { return params.*member; },
      [member, rule](SamplingParams& params, double given) {
        if (!(given >= INT32_MIN && given <= INT32_MAX) || given != static_cast<int>(given)) {
          throw nb::type_error((std::string(rule.name) + ": expected a whole number of 32 bits").c_str());
        }
        params.*member = meant(static_cast<int>(given), rule);
      });
}

template <std::vector<TokenId> SamplingParams::* member>
void def_token_ids(nb::class_<SamplingParams>& type, const char* name) {
  type.def_prop_rw(
      name, [](const SamplingParams& params) { return params.*member; },
      [name](SamplingParams& params, const TokenIds& given) { params.*member = token_ids(name, given); });
}

void bind_params(nb::module_& m) {
  nb::class_<SamplingParams> type(m, "SamplingParams",
                                  "The sampling parameters of a request; sampling_params.h explains the fields.");
  def_token_ids<&SamplingParams::end_ids>(type, "end_ids");
  def_token_ids<&SamplingParams::stop_token_ids>(type, "stop_token_ids");
  visit_numbers([&](auto member, const auto& rule) { def_number(type, member, rule); });
  type.def(nb::init<>())
      .def_rw("seed", &SamplingParams::seed)
      .def_rw("max_tokens", &SamplingParams::max_tokens)
      .def_rw("min_tokens", &SamplingParams::min_tokens)
      .def_rw("ignore_eos", &SamplingParams::ignore_eos)
      .def_rw("bad_words", &SamplingParams::bad_words)
      .def_rw("logit_bias", &SamplingParams::logit_bias)
      .def_rw("allowed_token_ids", &SamplingParams::allowed_token_ids, nb::arg().none())
      .def_rw("logprobs", &SamplingParams::logprobs, nb::arg().none())
      .def_rw("prompt_logprobs", &SamplingParams::prompt_logprobs, nb::arg().none())
      .def(
          "violations", [](const SamplingParams& p, int vocab_size) { return violations(p, vocab_size); },
          nb::arg("vocab_size"), "A sentence for everything wrong with the parameters; empty if nothing is.");
}

void bind_results(nb::module_& m) {
  nb::class_<RowLogprobs>(m, "RowLogprobs", "Log-probabilities at one position.")
      .def_prop_ro(
          "logprob", [](const RowLogprobs& r) { return r.chosen.logprob; }, "The chosen token's log probability.")
      .def_ro("rank", &RowLogprobs::rank, "The chosen token's rank: 1 is the most likely.")
      .def_prop_ro(
          "top",
          [](const RowLogprobs& r) {
            std::vector<std::pair<TokenId, float>> out;
            for (const auto& [token, logprob] : r.top) out.emplace_back(token, logprob);
            return out;
          },
          "The most likely tokens, best first.");
}

}  // namespace

void bind_sampling(nb::module_& module) {
  nb::module_ m = module.def_submodule("sampling", R"(
      Sampling parameters of requests, and log probabilities of tokens; csrc/sampling/*.h state the contract.)");
  bind_params(m);
  m.attr("MAX_STOP_TOKENS") = SamplingLimits::kMaxStopTokens;
  m.attr("MAX_LOGIT_BIAS_ENTRIES") = SamplingLimits::kMaxLogitBiasEntries;
  m.attr("MAX_BAD_WORDS") = SamplingLimits::kMaxBadWords;
  m.attr("MAX_BAD_WORD_LENGTH") = SamplingLimits::kMaxBadWordLength;
  bind_results(m);
  bind_beam_search(m);
}

}  // namespace tl
