// What llguidance's refusals mean, in words of our own where they are about a limit.
#pragma once

#include <string>

namespace tl::llguidance {

struct Refusal {
  bool is_limit;
  std::string reason;  // "it …: remedy" for a limit
};

// `message`: the library's; null if it gives none.
Refusal refusal_of(const char* message);

// Throws LimitError or ArgumentError about a grammar that the library does not compile.
[[noreturn]] void throw_refused(const char* message);

}  // namespace tl::llguidance
