// Lets tests drive a beam search by hand.
#include "sampling/beam_search.h"

#include "bindings/sampling.h"
#include "bindings/testing/testing.h"

namespace nb = nanobind;

namespace tl {
namespace {

using namespace sampling_bindings;

class CheckedBeamSearch {
 public:
  CheckedBeamSearch(const BeamSearchParams& beams, const SamplingParams& params, const Tokens& prompt, int vocab_size)
      : search_((check(beams, params, prompt, vocab_size), beams), params, prompt), vocab_size_(vocab_size) {}

  std::vector<std::pair<int, TokenId>> step(const Rows& logits) {
    require(!search_.done(), "the search is done; read hypotheses()");
    require(static_cast<int>(logits.shape(0)) == search_.num_live() && static_cast<int>(logits.shape(1)) == vocab_size_,
            "logits must have one row of the vocabulary per live beam");
    std::vector<std::span<const float>> rows;
    for (std::size_t i = 0; i < logits.shape(0); ++i) rows.push_back(row_of(logits, i));
    throw_if_any({search_.step(rows, workspace_)});
    std::vector<std::pair<int, TokenId>> out;
    for (const auto& [parent, token] : search_.moves()) out.emplace_back(parent, token);
    return out;
  }

  bool done() const { return search_.done(); }

  ScoredTokens hypotheses() const { return scored_tokens(search_.hypotheses()); }

 private:
  static void check(const BeamSearchParams& beams, const SamplingParams& params, const Tokens& prompt, int vocab_size) {
    throw_if_any(violations(beams, params, vocab_size));
    if (auto message = out_of_vocabulary("prompt", prompt, vocab_size)) throw LimitError(*message);
  }

  BeamSearch search_;
  int vocab_size_;
  SamplerWorkspace workspace_;
};

}  // namespace

void bind_beam_search_by_hand(nb::module_& m) {
  nb::class_<CheckedBeamSearch>(m, "BeamSearch", "One search, driven by hand.")
      .def(nb::init<const BeamSearchParams&, const SamplingParams&, const Tokens&, int>(), nb::arg("beams"),
           nb::arg("params"), nb::arg("prompt"), nb::arg("vocab_size"))
      .def("step", &CheckedBeamSearch::step, nb::arg("logits"), R"(
          Takes ``logits`` [live beams, vocab_size]; returns (parent, token) of each beam of the next step.)")
      .def_prop_ro("done", &CheckedBeamSearch::done)
      .def("hypotheses", &CheckedBeamSearch::hypotheses, "Finished sequences and their scores, best first.");
}

}  // namespace tl
