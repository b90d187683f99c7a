// Checks calls of Rowwise for what its schema cannot express: the program is one expression over present operands.
#pragma once

#include <span>
#include <string>

#include "engine/records.h"
#include "rowwise/program.h"
#include "rowwise_schema.h"

namespace tl {
namespace rowwise {

inline bool is_there(const Step& step, std::span<const PlanTensor* const> inputs) {
  switch (step.operation) {
    case Operation::kRow:
      return kX0 + step.index < kV0 && inputs[static_cast<std::size_t>(kX0 + step.index)] != nullptr;
    case Operation::kVector:
      return kV0 + step.index < kConstants && inputs[static_cast<std::size_t>(kV0 + step.index)] != nullptr;
    case Operation::kConstant: {
      const PlanTensor* constants = inputs[kConstants];
      return constants != nullptr && !constants->shape[0].symbol && step.index < constants->shape[0].value;
    }
    default:
      return true;
  }
}

inline std::string check(std::span<const PlanTensor* const> inputs, std::span<const AttributeValue> attributes) {
  const Program program = parse(attributes[0].s);
  if (program.problem != nullptr) return "program: expected " + std::string(program.problem);
  for (int i = 0; i < program.size; ++i) {
    if (is_there(program.steps[i], inputs)) continue;
    return "program: expected operands that the call has, found word " + std::to_string(i) + " to name another";
  }
  return "";
}

}  // namespace rowwise
}  // namespace tl
