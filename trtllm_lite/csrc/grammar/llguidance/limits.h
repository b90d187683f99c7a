// Limits of the work on grammars, other than the size of their texts.
#pragma once

#include <cstddef>

#include "grammar/llguidance/library.h"

namespace tl::llguidance {

// A grammar is tried on the smaller stack, in a process that may crash, and then used on the larger one: if it passes
// the trial, it overflows no stack here. (Threads that compute masks have at least 2 MiB, glibc's default without a
// limit.) A hundred nested schemas, or a chain of a hundred references, take about 0.8 MiB.
constexpr std::size_t kTrialStackBytes = std::size_t{1} << 20;
constexpr std::size_t kStackBytes = std::size_t{8} << 20;

// Limits measured with 49,152 tokens. With a limit of 1,000 items, a mask of an ambiguous grammar takes up to 0.2 s (2
// s with the library's own limit of 2,000); an object of 200 optional properties has 800 items. A lexer state takes
// about 700 bytes, so one text's lexer grows to at most 25 MB. A step of the lexer, and the parser's items for a mask,
// may take 7 ms each; no schema of the tests takes a tenth of that. The limit of precomputation is the library's own,
// about 20 ms.
constexpr Limits kLimits{
    .max_items_in_row = 1'000,
    .initial_lexer_fuel = 1'000'000,
    .step_lexer_fuel = 100'000,
    .step_max_items = 20'000,
    .max_lexer_states = 32'768,
    .max_grammar_size = 500'000,
    .precompute_large_lexemes = true,
    .verbose_errors = false,  // they would quote the parser's state
};

// Symbols have 16-bit numbers, of which the library reserves some; it panics if a grammar has more symbols than this.
constexpr int kMaxSymbols = 65'525;

}  // namespace tl::llguidance
