// Checks calls of GatedDeltaRule for what its schema cannot express: key heads divide value heads.
#pragma once

#include <span>
#include <string>

#include "engine/records.h"
#include "gated_delta_rule_schema.h"

namespace tl {
namespace gated_delta_rule {

inline std::string check(std::span<const PlanTensor* const> inputs, std::span<const AttributeValue> values) {
  const std::int64_t key_heads = attributes_of(KernelArgs{nullptr, nullptr, values.data(), nullptr}).num_key_heads;
  const std::int64_t value_heads = inputs[kRecurrentState]->shape[1].value;
  if (key_heads >= 1 && value_heads % key_heads == 0) return "";
  return "num_key_heads: expected a divisor of " + std::to_string(value_heads) + " value heads, found " +
         std::to_string(key_heads);
}

}  // namespace gated_delta_rule
}  // namespace tl
