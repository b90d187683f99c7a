// The time limit of a step on a CPU.
#pragma once

#include <chrono>

namespace tl {

// A request that arrives during a step waits for the end of that step and of the one that computes its first token. A
// tenth of a second still feels instant to people (Nielsen, Usability Engineering, 1993, chapter 5), and allows enough
// prompt tokens that reading the weights, which every step does, is a small part of the cost. Steps on GPUs always take
// less.
constexpr std::chrono::milliseconds kStepTime{100};
constexpr double kStepSeconds = std::chrono::duration<double>(kStepTime).count();

}  // namespace tl
