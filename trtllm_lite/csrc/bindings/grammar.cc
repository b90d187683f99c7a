// Bindings of grammars.
#include "grammar/grammar.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "grammar/llguidance.h"

namespace nb = nanobind;

namespace tl {

void bind_grammar(nb::module_& module) {
  nb::class_<Grammar>(module, "Grammar");
  nb::class_<llguidance::Compiler>(module, "GrammarCompiler")
      .def(
          "__init__",
          [](llguidance::Compiler* self, const std::string& library, const std::string& tokenizer_json,
             std::uint32_t vocab_size, const std::vector<std::uint32_t>& end_ids) {
            new (self) llguidance::Compiler(library, tokenizer_json, vocab_size, end_ids);
          },
          nb::kw_only(), nb::arg("library"), nb::arg("tokenizer_json"), nb::arg("vocab_size"), nb::arg("end_ids"),
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "compile",
          [](llguidance::Compiler& self, std::string kind, std::string text, int timeout_ms) {
            return std::const_pointer_cast<Grammar>(
                self.compile(std::move(kind), std::move(text), std::chrono::milliseconds(timeout_ms)));
          },
          nb::arg("kind"), nb::arg("text"), nb::kw_only(), nb::arg("timeout_ms"),
          nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace tl
