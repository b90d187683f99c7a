// Checks calls of LowRank for what its schema cannot express: each row belongs to a token.
#pragma once

#include <span>
#include <string>

#include "engine/records.h"
#include "low_rank_schema.h"

namespace tl {
namespace low_rank {

inline std::string check(std::span<const PlanTensor* const> inputs, std::span<const AttributeValue>) {
  const PlanTensor* indices = inputs[kLogitsIndices];
  const Dim& rows = inputs[kX]->shape[0];
  if (indices != nullptr && rows != indices->shape[0]) return "expected a row of x for each of logits_indices";
  if (indices == nullptr && rows.symbol && *rows.symbol != Symbol::kNumTokens) {
    return "expected logits_indices, or a row of x for each token";
  }
  return "";
}

}  // namespace low_rank
}  // namespace tl
