// Error messages about failed ranks on any device.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tl {

// The error of steps after one in which a rank was given up.
constexpr const char* kRankGivenUp =
    "a rank of this engine did not come back from an earlier step: load the engine again";

// The message that `ranks` of `num_ranks` did not come to `where` in time.
std::string did_not_come(const std::string& ranks, int num_ranks, const std::string& where, std::uint64_t step,
                         std::chrono::nanoseconds timeout);

}  // namespace tl
