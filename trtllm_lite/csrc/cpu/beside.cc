#include "cpu/beside.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "engine/checks/plan_check.h"

namespace tl {
namespace {

constexpr std::int64_t kPageBytes = 4096;

void tighten(Extents& extents) {
  for (const Symbol symbol : {Symbol::kNumTokens, Symbol::kNumSeqs}) {
    extents[symbol] = std::min<std::int64_t>(extents[symbol], kBesideTokens);
  }
  extents[Symbol::kNumSeqsPlus1] = extents[Symbol::kNumSeqs] + 1;
}

}  // namespace

StepBounds beside_bounds(const Manifest& manifest) {
  if (manifest.limits.max_input_len <= kBesideTokens) return {};
  const auto max_rows = std::min<std::int64_t>(manifest.limits.max_batch_size, kBesideTokens);
  return {.max_rows = static_cast<int>(max_rows), .max_tokens = kBesideTokens};
}

StepLimits beside_limits(StepLimits limits) {
  tighten(limits.bounds);
  return limits;
}

std::size_t beside_arena_bytes(const Plan& plan) {
  Plan small = plan;
  tighten(small.symbols);
  std::map<std::int64_t, std::int64_t> largest;  // by offset
  for (const PlanTensor& tensor : small.tensors) {
    if (tensor.kind != TensorKind::kArena) continue;
    std::int64_t& bytes = largest[tensor.offset];
    bytes = std::max(bytes, max_bytes(small, tensor));
  }
  std::int64_t total = 0;
  for (const auto& [_, bytes] : largest) total += (bytes + kPageBytes - 1) / kPageBytes * kPageBytes + kPageBytes;
  return static_cast<std::size_t>(std::min(total, plan.arena_bytes));
}

}  // namespace tl
