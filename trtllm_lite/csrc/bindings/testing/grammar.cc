// Lets tests follow the masks and guesses of a grammar.
#include "grammar/grammar.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings/testing/testing.h"

namespace nb = nanobind;

namespace tl {
namespace {

std::vector<int> allowed(GrammarMatcher& matcher, int vocab_size) {
  std::vector<std::uint32_t> mask(mask_words(static_cast<std::size_t>(vocab_size)));
  matcher.fill_mask(mask);
  std::vector<int> tokens;
  for (int token = 0; token < vocab_size; ++token) {
    if (mask[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1) tokens.push_back(token);
  }
  return tokens;
}

}  // namespace

void bind_grammar_matcher(nb::module_& module) {
  nb::class_<GrammarMatcher>(module, "GrammarMatcher")
      .def("allowed", &allowed, nb::arg("vocab_size"))
      .def(
          "accept", [](GrammarMatcher& matcher, const std::vector<std::int32_t>& tokens) { matcher.accept(tokens); },
          nb::arg("tokens"))
      .def("roll_back", &GrammarMatcher::roll_back, nb::arg("count"));
  module.def("start_grammar", [](const Grammar& grammar) { return grammar.start(); }, nb::arg("grammar"));
  nb::class_<GrammarGuesser>(module, "GrammarGuesser")
      .def(
          "accept", [](GrammarGuesser& guesser, const std::vector<std::int32_t>& tokens) { guesser.accept(tokens); },
          nb::arg("tokens"), nb::call_guard<nb::gil_scoped_release>())
      .def("guess", &GrammarGuesser::guess, nb::arg("most"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "num_allowed",
          [](GrammarGuesser& guesser, const std::vector<std::int32_t>& tokens) { return guesser.num_allowed(tokens); },
          nb::arg("tokens"), nb::call_guard<nb::gil_scoped_release>());
  module.def("start_guesser", [](const Grammar& grammar) { return grammar.start_guesser(); }, nb::arg("grammar"));
}

}  // namespace tl
