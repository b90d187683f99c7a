// Resolves calls of operators for executors: operands come in the order of the operator's schema.
#pragma once

#include <vector>

#include "engine/op_schema.h"
#include "engine/records.h"

namespace tl {

constexpr int kAbsent = -1;

// One call. Operands are positions in Plan::tensors; kAbsent for an optional operand that is not there.
struct ResolvedCall {
  const OpSchema* schema = nullptr;
  std::vector<int> inputs;
  std::vector<int> outputs;  // of an output that aliases an input: that input's tensor
  std::vector<AttributeValue> attributes;
  AttributeTexts texts;  // what text attributes point to
};

// Finds the operator, and puts operands and attributes in its order. Throws EngineError if there is no such operator,
// or the call has operands or attributes that the operator does not have, or lacks an attribute.
ResolvedCall resolve(const CallInstruction& call);

}  // namespace tl
