#include "cpu/beside.h"

#include <algorithm>
#include <cstdint>

#include "executor/beside.h"

namespace tl {
namespace {

constexpr std::int64_t kPageBytes = 4096;

}  // namespace

StepLimits beside_limits(StepLimits limits) {
  limits.bounds = beside_extents(limits.bounds, kBesideTokens);
  return limits;
}

std::size_t beside_arena_bytes(const Plan& plan) {
  std::int64_t total = 0;
  for (const auto& [_, bytes] : beside_arena(plan, kBesideTokens)) {
    total += (bytes + kPageBytes - 1) / kPageBytes * kPageBytes + kPageBytes;
  }
  return static_cast<std::size_t>(std::min(total, plan.arena_bytes));
}

}  // namespace tl
