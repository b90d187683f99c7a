// The clock of deadlines and timings.
#pragma once

#include <chrono>

namespace tl {

using Clock = std::chrono::steady_clock;

inline double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace tl
