// Checks calls of Embedding for what its schema cannot express.
#pragma once

#include "embedding_schema.h"
#include "scaled_weight_check.h"

namespace tl {
namespace embedding {

inline std::string check(std::span<const PlanTensor* const> inputs, std::span<const AttributeValue>) {
  return scaled_weight_problem(inputs[kWeight], inputs[kWeightScale], inputs[kWeightOffset]);
}

}  // namespace embedding
}  // namespace tl
