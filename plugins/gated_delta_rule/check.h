// Checks calls of GatedDeltaRule for what its schema cannot express.
#pragma once

#include <span>
#include <string>

#include "engine/checks/replay_size.h"
#include "engine/records.h"
#include "gated_delta_rule_schema.h"

namespace tl {
namespace gated_delta_rule {

inline std::string check(std::span<const PlanTensor* const> inputs, std::span<const AttributeValue> values) {
  const Attributes attributes = attributes_of(KernelArgs{nullptr, nullptr, values.data(), nullptr});
  const std::int64_t key_heads = attributes.num_key_heads, value_heads = inputs[kRecurrentState]->shape[1].value;
  if (attributes.decay_dim != 1 && attributes.decay_dim != attributes.key_dim) {
    return "decay_dim: expected 1 or key_dim, " + std::to_string(attributes.key_dim) + ", found " +
           std::to_string(attributes.decay_dim);
  }
  if (key_heads < 1 || value_heads % key_heads != 0) {
    return "num_key_heads: expected a divisor of " + std::to_string(value_heads) + " value heads, found " +
           std::to_string(key_heads);
  }
  const std::int64_t of_token = attributes.key_dim + attributes.value_dim + attributes.decay_dim;
  return check_replay_size(*inputs[kRecurrentState], attributes.key_dim * attributes.value_dim,
                           (attributes.replay_tokens + attributes.taken_back) * of_token + 1);
}

}  // namespace gated_delta_rule
}  // namespace tl
