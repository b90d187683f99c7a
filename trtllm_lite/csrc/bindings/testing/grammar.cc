// Lets tests compute the masks and forced tokens of a grammar.
#include "grammar/grammar.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>
#include <span>
#include <utility>

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

// A grammar whose masks, for texts of at least `num_free` tokens, are held back until it is released.
class HeldGrammar : public Grammar {
 public:
  HeldGrammar(std::shared_ptr<Grammar> grammar, std::size_t num_free)
      : grammar_(std::move(grammar)), gate_(std::make_shared<Gate>()), num_free_(num_free) {}

  std::unique_ptr<GrammarMatcher> start() const override {
    return std::make_unique<Matcher>(grammar_->start(), gate_, num_free_);
  }
  std::unique_ptr<TokenForcer> start_forcer() const override { return grammar_->start_forcer(); }
  void release() {
    gate_->is_open.test_and_set();
    gate_->is_open.notify_all();
  }

 private:
  struct Gate {
    std::atomic_flag is_open;
  };

  class Matcher : public GrammarMatcher {
   public:
    Matcher(std::unique_ptr<GrammarMatcher> matcher, std::shared_ptr<Gate> gate, std::size_t num_free)
        : matcher_(std::move(matcher)), gate_(std::move(gate)), num_free_(num_free) {}
    void fill_mask(std::span<std::uint32_t> mask) override {
      if (num_tokens_ >= num_free_) gate_->is_open.wait(false);
      matcher_->fill_mask(mask);
    }
    void accept(std::span<const std::int32_t> tokens) override {
      matcher_->accept(tokens);
      num_tokens_ += tokens.size();
    }
    std::size_t num_allowed(std::span<const std::int32_t> tokens) override { return matcher_->num_allowed(tokens); }
    void roll_back(std::size_t count) override {
      matcher_->roll_back(count);
      num_tokens_ -= count;
    }

   private:
    std::unique_ptr<GrammarMatcher> matcher_;
    std::shared_ptr<Gate> gate_;
    std::size_t num_free_, num_tokens_ = 0;
  };

  std::shared_ptr<Grammar> grammar_;
  std::shared_ptr<Gate> gate_;
  std::size_t num_free_;
};

}  // namespace

void bind_grammar_matcher(nb::module_& module) {
  nb::class_<GrammarMatcher>(module, "GrammarMatcher",
                             "A text that grows under a grammar. GrammarError of the C++ side becomes a RuntimeError.")
      .def("allowed", &allowed, nb::arg("vocab_size"), "The tokens that may come next.")
      .def(
          "accept", [](GrammarMatcher& matcher, const std::vector<std::int32_t>& tokens) { matcher.accept(tokens); },
          nb::arg("tokens"), "Append tokens.")
      .def(
          "num_allowed",
          [](GrammarMatcher& matcher, const std::vector<std::int32_t>& tokens) { return matcher.num_allowed(tokens); },
          nb::arg("tokens"), R"(
              The number of leading ``tokens``, none of them an end token, that may follow one after the other.)")
      .def("roll_back", &GrammarMatcher::roll_back, nb::arg("count"), "Remove the last ``count`` tokens.");
  module.def(
      "start_grammar", [](const Grammar& grammar) { return grammar.start(); }, nb::arg("grammar"),
      "A matcher of the empty text.");
  nb::class_<TokenForcer>(module, "TokenForcer", R"(
      Drafts the continuation of a text under a grammar. GrammarError of the C++ side becomes a RuntimeError.)")
      .def(
          "accept", [](TokenForcer& forcer, const std::vector<std::int32_t>& tokens) { forcer.accept(tokens); },
          nb::arg("tokens"), nb::call_guard<nb::gil_scoped_release>(), "Append tokens.")
      .def("forced_tokens", &TokenForcer::forced_tokens, nb::arg("most"), nb::call_guard<nb::gil_scoped_release>(),
           "Up to ``most`` tokens that the grammar determines.")
      .def(
          "num_allowed",
          [](TokenForcer& forcer, const std::vector<std::int32_t>& tokens) { return forcer.num_allowed(tokens); },
          nb::arg("tokens"), nb::call_guard<nb::gil_scoped_release>(), "How many of ``tokens`` may come next.");
  nb::class_<HeldGrammar, Grammar>(module, "HeldGrammar", R"(
      A grammar whose masks, for texts of at least ``num_free`` tokens, are held back until it is released.)")
      .def(nb::init<std::shared_ptr<Grammar>, std::size_t>(), nb::arg("grammar"), nb::arg("num_free"))
      .def("release", &HeldGrammar::release, "Hold back nothing more.");
  module.def(
      "start_forcer", [](const Grammar& grammar) { return grammar.start_forcer(); }, nb::arg("grammar"),
      "A forcer of the empty text; the grammar's compiler must have been made with ``tokenize``.");
}

}  // namespace tl
