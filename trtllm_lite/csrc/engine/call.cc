#include "engine/call.h"

#include <string>

#include "errors.h"

namespace tl {
namespace {

[[noreturn]] void fail(const CallInstruction& call, const std::string& message) {
  throw EngineError("operator " + call.op + ": " + message);
}

int tensor_of(const CallInstruction& call, std::string_view operand) {
  const auto found = call.operands.find(std::string(operand));
  return found == call.operands.end() ? kAbsent : found->second;
}

AttributeValue value_of(const CallInstruction& call, const AttributeSpec& spec, AttributeTexts* texts) {
  const auto found = call.attributes.find(std::string(spec.name));
  if (found == call.attributes.end()) fail(call, "expected the attribute " + std::string(spec.name) + ", found none");
  const std::string attribute = " as the attribute " + std::string(spec.name);
  const auto* integer = std::get_if<std::int64_t>(&found->second);
  const auto* number = std::get_if<double>(&found->second);
  const auto* text = std::get_if<std::string>(&found->second);
  AttributeValue value;
  switch (spec.kind) {
    case AttributeKind::kInt:
      if (integer == nullptr) fail(call, "expected an integer" + attribute);
      value.i = *integer;
      return value;
    case AttributeKind::kFloat:
      if (text != nullptr) fail(call, "expected a number" + attribute);
      value.f = integer != nullptr ? static_cast<double>(*integer) : *number;
      return value;
    case AttributeKind::kChoice:
    case AttributeKind::kText:
      break;
  }
  const std::optional<AttributeValue> parsed = text ? parse_text(spec, *text, texts) : std::nullopt;
  if (!parsed) fail(call, "expected " + expected_text(spec) + attribute);
  return *parsed;
}

}  // namespace

ResolvedCall resolve(const CallInstruction& call) {
  ResolvedCall resolved{.schema = find_op(call.op), .inputs = {}, .outputs = {}, .attributes = {}, .texts = {}};
  if (resolved.schema == nullptr)
    fail(call,
         "expected an operator of trtllm_lite or of a package that the engine names, found none of this "
         "name (docs/contributing/out-of-tree.md)");
  std::size_t num_used = 0;
  for (const ArgumentSpec& spec : resolved.schema->inputs) {
    resolved.inputs.push_back(tensor_of(call, spec.name));
    num_used += resolved.inputs.back() != kAbsent;
  }
  for (const ArgumentSpec& spec : resolved.schema->outputs) {
    const bool aliases = spec.alias >= 0;
    const int tensor = aliases ? resolved.inputs[static_cast<std::size_t>(spec.alias)] : tensor_of(call, spec.name);
    resolved.outputs.push_back(tensor);
    num_used += !aliases && tensor != kAbsent;
  }
  if (num_used != call.operands.size()) fail(call, "expected no operands but those of its schema, found others");
  for (const AttributeSpec& spec : resolved.schema->attributes) {
    resolved.attributes.push_back(value_of(call, spec, &resolved.texts));
  }
  if (call.attributes.size() != resolved.attributes.size()) {
    fail(call, "expected no attributes but those of its schema, found others");
  }
  return resolved;
}

}  // namespace tl
