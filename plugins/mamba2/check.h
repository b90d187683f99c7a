// Checks calls of Mamba2 for what its schema cannot express: groups divide heads.
#pragma once

#include <span>
#include <string>

#include "engine/records.h"
#include "mamba2_schema.h"

namespace tl {
namespace mamba2 {

inline std::string check(std::span<const PlanTensor* const> inputs, std::span<const AttributeValue> values) {
  const std::int64_t groups = attributes_of(KernelArgs{nullptr, nullptr, values.data(), nullptr}).num_groups;
  const std::int64_t heads = inputs[kRecurrentState]->shape[1].value;
  if (groups >= 1 && heads % groups == 0) return "";
  return "num_groups: expected a divisor of " + std::to_string(heads) + " heads, found " + std::to_string(groups);
}

}  // namespace mamba2
}  // namespace tl
