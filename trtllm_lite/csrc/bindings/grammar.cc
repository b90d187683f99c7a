// Bindings of grammars.
#include "grammar/grammar.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <utility>

#include "bindings/bindings.h"
#include "grammar/heap.h"
#include "grammar/llguidance/grammars.h"
#include "grammar/reasoning.h"
#include "grammar/thought_tokens.h"
#include "text/thoughts.h"

namespace nb = nanobind;

namespace tl {
namespace {

// Makes a Tokenize function that calls a Python function, from any thread.
llguidance::Tokenize tokenize_by(const nb::callable& function) {
  const auto forget = [](nb::callable* held) {
    const nb::gil_scoped_acquire acquire;
    delete held;
  };
  const std::shared_ptr<nb::callable> kept(new nb::callable(function), forget);
  return [kept](const std::string& text) {
    const nb::gil_scoped_acquire acquire;
    return nb::cast<std::vector<std::int32_t>>((*kept)(nb::bytes(text.data(), text.size())));
  };
}

void bind_compiler(nb::module_& module) {
  nb::class_<llguidance::Compiler>(module, "GrammarCompiler",
                                   "Compiles grammars over the tokens of one model, by llguidance.")
      .def(
          "__init__",
          [](llguidance::Compiler* self, const std::string& library, const std::string& tokenizer_json,
             std::uint32_t vocab_size, const std::vector<std::uint32_t>& end_ids,
             const std::optional<nb::typed<nb::callable, std::vector<std::int32_t>(nb::bytes)>>& tokenize) {
            llguidance::Tokenize spell = tokenize ? tokenize_by(*tokenize) : nullptr;
            const nb::gil_scoped_release release;
            new (self) llguidance::Compiler(library, tokenizer_json, vocab_size, end_ids, std::move(spell));
          },
          nb::kw_only(), nb::arg("library"), nb::arg("tokenizer_json"), nb::arg("vocab_size"), nb::arg("end_ids"),
          nb::arg("tokenize").none() = nb::none(), R"(
              ``library`` is the path of llguidance's shared library; ``end_ids`` must not be empty.

              ``tokenize`` returns the tokens of a text that a grammar drafts, [] if it cannot; None: grammars do not
              draft. Event loops call it from their own threads.

              Raises ArgumentError for an unknown version of llguidance, or a tokenizer that it cannot read;
              DeviceError if the library does not load.)")
      .def(
          "compile",
          [](const llguidance::Compiler& self, const std::string& kind, const std::string& text, bool names_tokens) {
            return std::const_pointer_cast<Grammar>(self.compile(kind, text, names_tokens));
          },
          nb::arg("kind"), nb::arg("text"), nb::kw_only(), nb::arg("names_tokens") = false,
          nb::call_guard<nb::gil_scoped_release>(), R"(
              ``kind`` is json_schema, regex, lark or llguidance. The GIL is released.

              A grammar that ``names_tokens``, such as ``<[3]>``, drafts nothing.

              Raises ArgumentError for a grammar that llguidance refuses, LimitError for one that exceeds its limits.
              A text that has not passed ``try_out`` may crash the process.)")
      .def("try_out", &llguidance::Compiler::try_out, nb::arg("kind"), nb::arg("text"), nb::kw_only(),
           nb::arg("num_tokens"), nb::arg("names_tokens") = false, nb::call_guard<nb::gil_scoped_release>(), R"(
               Compile, and write a random text of ``num_tokens``, on a smaller stack than ``compile`` has.

               Returns the bytes of memory that the grammar takes. Meant for a process of its own, which this call may
               crash.)")
      .def(
          "tokens_of",
          [](const llguidance::Compiler& self, std::shared_ptr<Thoughts> thoughts) {
            return std::const_pointer_cast<llguidance::ThoughtTokens>(self.tokens_of(std::move(thoughts)));
          },
          nb::arg("thoughts"), nb::call_guard<nb::gil_scoped_release>(), R"(
              The tokens with which the model writes thoughts; finding them takes a moment. The GIL is released.)");
}

}  // namespace

void bind_grammar(nb::module_& module) {
  module.def("return_free_memory", &return_free_memory, nb::call_guard<nb::gil_scoped_release>(),
             "Return freed memory of this process to the system (heap.h). The GIL is released.");
  nb::class_<llguidance::ThoughtTokens>(module, "ThoughtTokens",
                                        "The tokens with which one model writes thoughts, for any number of grammars.");
  nb::class_<Grammar>(module, "Grammar", "A compiled grammar, which any number of requests may share.")
      .def(
          "behind",
          [](std::shared_ptr<Grammar> self, std::shared_ptr<llguidance::ThoughtTokens> tokens) {
            return std::const_pointer_cast<Grammar>(llguidance::behind_thoughts(std::move(self), std::move(tokens)));
          },
          nb::arg("tokens"), R"(
              This grammar for texts that may begin with thoughts (reasoning.h); ``tokens`` come from the same
              compiler.)");
  bind_compiler(module);
}

}  // namespace tl
