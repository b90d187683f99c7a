#include "grammar/llguidance/refusals.h"

#include <string_view>
#include <vector>

#include "errors.h"
#include "grammar/llguidance/limits.h"

namespace tl::llguidance {
namespace {

struct Meaning {
  std::string_view begin;  // beginning of the library's message
  bool is_limit;
  std::string reason;
};

std::string number(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t place = text.size(); place > 3; place -= 3) text.insert(place - 3, ",");
  return text;
}

// The first match counts.
const std::vector<Meaning>& meanings() {
  static const std::string preparing = "its strings and regular expressions take more than " +
                                       number(kLimits.initial_lexer_fuel) +
                                       " units of work to prepare: shorten them, and their counted repetitions";
  static const std::string symbols = "it has more than " + number(kMaxSymbols) + " symbols: shorten it";
  static const std::vector<Meaning> all{
      {"panic: assertion failed: grammar.symbols.len()", true, symbols},
      {"grammar size (number of symbols)", true, symbols},
      {"panic: ", false, "the library fails on it"},
      {"lexer precomputation failed", true, preparing},
      {"fuel exhausted", true, preparing},
      {"initial lexer configuration", true, preparing},
      {"too many states", true,
       "a text under it needs more than " + number(kLimits.max_lexer_states) +
           " states of its regular expressions: shorten counted repetitions, and free text before them"},
      {"too many expressions", true,
       "a token under it takes more than " + number(kLimits.step_lexer_fuel) +
           " units of work on its regular expressions: shorten counted repetitions, and free text before them"},
      {"Too many items", true,
       "a token under it takes more than " + number(kLimits.step_max_items) +
           " steps of its rules: make terminals longer, or write alternatives as one terminal"},
      {"Current row has", true,
       "more than " + number(kLimits.max_items_in_row) +
           " of its rules are open at one place of the text: make it unambiguous, recursion left-recursive, and "
           "properties required"},
      {"schema too large", true, "it has more than 50,000 schemas inside it: shorten it"},
      {"Schema intersection stack level exceeded", true,
       "allOf and references merge more than 128 schemas inside each other: flatten them"},
      {"NoExtension", false, "no text can match it: it contradicts itself, or its references only lead to each other"},
  };
  return all;
}

// The text without the prefix by which the library names its component.
std::string_view without_speaker(std::string_view text) {
  for (const std::string_view speaker : {"parser error: ", "Parser Error: ", "lexer error: "}) {
    if (text.starts_with(speaker)) text.remove_prefix(speaker.size());
  }
  return text;
}

}  // namespace

Refusal refusal_of(const char* message) {
  const std::string_view text = without_speaker(message != nullptr ? message : "no reason is known");
  for (const Meaning& meaning : meanings()) {
    if (text.starts_with(meaning.begin)) return {meaning.is_limit, meaning.reason};
  }
  return {false, std::string(text.substr(0, text.find("\n<non-verbose/>")))};
}

void throw_refused(const char* message) {
  const Refusal refusal = refusal_of(message);
  if (refusal.is_limit) throw LimitError("expected a grammar within the limits, but " + refusal.reason);
  throw ArgumentError("expected a grammar that llguidance compiles, found one that it refuses (" + refusal.reason +
                      "); correct or simplify it");
}

}  // namespace tl::llguidance
