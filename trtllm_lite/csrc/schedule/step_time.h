// Time limits: of a step on a CPU, and of grammars.
#pragma once

#include <chrono>
#include <string>

namespace tl {

// A request that arrives during a step waits for the end of that step and of the one that computes its first token. A
// tenth of a second still feels instant to people (Nielsen, Usability Engineering, 1993, chapter 5), and allows enough
// prompt tokens that reading the weights, which every step does, is a small part of the cost. Steps on GPUs always take
// less.
constexpr std::chrono::milliseconds kStepTime{100};
constexpr double kStepSeconds = std::chrono::duration<double>(kStepTime).count();

// How long a token's masks may be late, and may take beside a state: as long as a grammar may take to compile.
constexpr std::chrono::seconds kMostLate{10};

inline std::string takes_too_long() {
  return "guided_decoding: expected a grammar that says within " + std::to_string(kMostLate.count()) +
         " seconds which tokens may come next, found one that takes longer: simplify it, and above all its rules that "
         "derive the same text in several ways";
}

}  // namespace tl
