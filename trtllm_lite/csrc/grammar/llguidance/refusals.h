// The meaning of llguidance's refusals; those about a limit are reworded.
#pragma once

#include <string>

namespace tl::llguidance {

struct Refusal {
  bool is_limit;
  std::string reason;  // for a limit: "it" with what exceeds the limit, a colon and a remedy
};

// `message`: the library's message; null if there is none.
Refusal refusal_of(const char* message);

// Throws LimitError or ArgumentError for a grammar that the library refuses to compile.
[[noreturn]] void throw_refused(const char* message);

}  // namespace tl::llguidance
