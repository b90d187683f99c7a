// Checks calls of GroupedGatedLinear for what its schema cannot express.
#pragma once

#include "grouped_gated_linear_schema.h"
#include "scaled_weight_check.h"

namespace tl {
namespace grouped_gated_linear {

inline std::string check(std::span<const PlanTensor* const> inputs, std::span<const AttributeValue>) {
  return scaled_weight_problem(inputs[kWeight], inputs[kWeightScale], inputs[kWeightOffset]);
}

}  // namespace grouped_gated_linear
}  // namespace tl
