// Checks calls of Mamba2 for what its schema cannot express: groups divide heads, and the size of states.
#pragma once

#include <span>
#include <string>

#include "engine/checks/replay_size.h"
#include "engine/records.h"
#include "mamba2_schema.h"

namespace tl {
namespace mamba2 {

inline std::string check(std::span<const PlanTensor* const> inputs, std::span<const AttributeValue> values) {
  const Attributes attributes = attributes_of(KernelArgs{nullptr, nullptr, values.data(), nullptr});
  const std::int64_t groups = attributes.num_groups, heads = inputs[kRecurrentState]->shape[1].value;
  if (groups < 1 || heads % groups != 0) {
    return "num_groups: expected a divisor of " + std::to_string(heads) + " heads, found " + std::to_string(groups);
  }
  const std::int64_t of_token = attributes.key_dim + attributes.value_dim + attributes.decay_dim;
  return check_replay_size(*inputs[kRecurrentState], attributes.key_dim * attributes.value_dim,
                           (attributes.replay_tokens + attributes.taken_back) * of_token + 1);
}

}  // namespace mamba2
}  // namespace tl
