// Resolves calls of operators for executors: puts operands in the order of the operator's schema.
#pragma once

#include <vector>

#include "engine/operators.h"
#include "engine/records.h"

namespace tl {

constexpr int kAbsent = -1;

// A call. Operands are indices into Plan::tensors; kAbsent for an absent optional operand.
struct ResolvedCall {
  const OpSchema* schema = nullptr;
  std::vector<int> inputs;
  std::vector<int> outputs;  // an output that aliases an input has the input's tensor
  std::vector<AttributeValue> attributes;
  AttributeTexts texts;  // the texts of text attributes
};

// Finds the operator and orders operands and attributes. Throws EngineError if there is no such operator, if it does
// not have one of the operands or attributes, or if an attribute is missing.
ResolvedCall resolve(const CallInstruction& call);

}  // namespace tl
