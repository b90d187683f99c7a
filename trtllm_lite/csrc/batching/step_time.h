// How long a step on a CPU may take.
#pragma once

#include <chrono>

namespace tl {

// Whoever comes while a step runs waits for its end, and for that of the step which computes their first token. A tenth
// of a second is what people take for an answer at once (Nielsen, Usability Engineering, 1993, chapter 5), and enough
// tokens of a prompt that the weights, which every step reads, are a small part of what it costs. Steps on GPUs end in
// less than that, whatever is in them.
constexpr std::chrono::milliseconds kStepTime{100};
constexpr double kStepSeconds = std::chrono::duration<double>(kStepTime).count();

}  // namespace tl
