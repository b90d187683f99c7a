// The program of an engine: a list of operator calls over tensors with static places.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/call_check.h"
#include "engine/op_schema.h"

namespace tl {

class JsonView;

enum class TensorKind { kInput, kArena, kWeight, kCache };

struct PlanTensor {
  std::string name;
  TensorKind kind = TensorKind::kInput;
  Operand operand;
  std::int64_t offset = 0;  // arena: bytes from its start; weight: bytes from the start of the data section; else 0
};

constexpr int kAbsent = -1;

// One call. Operands are indices into Plan::tensors; kAbsent for an optional operand that is not there.
struct Instruction {
  const OpSchema* schema = nullptr;
  std::vector<int> inputs;
  std::vector<int> outputs;
  std::vector<AttributeValue> attributes;
};

struct Plan {
  std::array<std::int64_t, kNumStepSymbols> bounds{};  // largest value of each step symbol
  std::int64_t arena_bytes = 0;
  std::vector<PlanTensor> tensors;
  int logits = kAbsent;
  std::vector<Instruction> instructions;

  std::int64_t bound(StepSymbol symbol) const { return bounds[static_cast<std::size_t>(symbol)]; }
};

// Reads the JSON: types, names and ranges of every field; indices are in range, operators and attributes exist.
// What the fields mean together is checked by check_plan. Throws EngineError.
Plan read_plan(const JsonView& json);

}  // namespace tl
