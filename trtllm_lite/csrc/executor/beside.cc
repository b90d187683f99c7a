#include "executor/beside.h"

#include <algorithm>

#include "engine/checks/plan_check.h"
#include "engine/module.h"

namespace tl {

StepBounds beside_bounds(const Manifest& manifest, int most) {
  if (manifest.limits.max_input_len <= most || only_module(manifest).tokens_per_row > 0) return {};
  const auto max_rows = std::min<std::int64_t>(manifest.limits.max_batch_size, most);
  return {.max_rows = static_cast<int>(max_rows), .max_tokens = most};
}

Extents beside_extents(Extents all, int most) {
  for (const Symbol symbol : {Symbol::kNumTokens, Symbol::kNumSeqs}) {
    all[symbol] = std::min<std::int64_t>(all[symbol], most);
  }
  all[Symbol::kNumSeqsPlus1] = all[Symbol::kNumSeqs] + 1;
  return all;
}

std::map<std::int64_t, std::int64_t> beside_arena(const Plan& plan, int most) {
  const Extents extents = beside_extents(plan.symbols, most);
  std::map<std::int64_t, std::int64_t> largest;
  for (const PlanTensor& tensor : plan.tensors) {
    if (tensor.kind != TensorKind::kArena) continue;
    std::int64_t& bytes = largest[tensor.offset];
    bytes = std::max(bytes, max_bytes(extents, tensor));
  }
  return largest;
}

}  // namespace tl
