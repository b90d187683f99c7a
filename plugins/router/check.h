// Checks calls of Router for what its schema cannot express: its groups divide the experts, and have enough of them.
#pragma once

#include <span>
#include <string>

#include "engine/records.h"
#include "router/groups.h"
#include "router/tally.cuh"
#include "router_schema.h"

namespace tl {
namespace router {

static_assert(kTallyPlaces == 3, "the schema says so");

inline std::string check(std::span<const PlanTensor* const> inputs, std::span<const AttributeValue> values) {
  const auto [top_k, scoring, num_groups, top_groups, num_best, scale, threshold, num_shared, shared_gate,
              local_experts, moe_tp_size] = attributes_of(KernelArgs{nullptr, nullptr, values.data(), nullptr});
  const std::int64_t experts = inputs[kWeight]->shape[1].value - shared_gate;
  if (num_groups < 1 || num_groups > kMaxGroups || experts % num_groups != 0) {
    return "num_groups: expected a divisor of " + std::to_string(experts) + " experts up to " +
           std::to_string(kMaxGroups) + ", found " + std::to_string(num_groups);
  }
  if (top_groups < 1 || top_groups > num_groups || top_k > top_groups * (experts / num_groups)) {
    return "top_groups: expected up to " + std::to_string(num_groups) + " groups that have " + std::to_string(top_k) +
           " experts, found " + std::to_string(top_groups);
  }
  if (!(threshold >= 0)) return "threshold: expected 0 or more, found " + std::to_string(threshold);
  if (num_best >= 1 && num_best <= experts / num_groups) return "";
  return "num_best: expected up to the " + std::to_string(experts / num_groups) + " experts of a group, found " +
         std::to_string(num_best);
}

}  // namespace router
}  // namespace tl
