#include "engine/plan.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "engine/json_reader.h"

namespace tl {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
constexpr std::size_t kMaxNameLength = 512;
constexpr std::string_view kKindNames[] = {"input", "arena", "weight", "cache"};

template <typename Range>
int index_of(const Range& names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  return found == std::end(names) ? -1 : static_cast<int>(found - std::begin(names));
}

std::array<std::int64_t, kNumStepSymbols> read_bounds(const JsonView& json) {
  std::array<std::int64_t, kNumStepSymbols> bounds{};
  for (int symbol = 0; symbol < kNumStepSymbols; ++symbol) {
    bounds[static_cast<std::size_t>(symbol)] =
        json.at(std::string(kStepSymbolNames[symbol])).integer(1, kMaxExtent - 1);
  }
  if (json.members().size() != kNumStepSymbols) json.fail("no symbols but those of a step");
  return bounds;
}

Dim read_dim(const JsonView& json) {
  if (!json.is_string()) return {json.integer(1, kMaxExtent - 1), std::nullopt};
  const int symbol = index_of(kStepSymbolNames, json.string());
  if (symbol < 0) json.fail("an integer or a symbol of the step");
  return {0, static_cast<StepSymbol>(symbol)};
}

Operand read_operand(const JsonView& json) {
  Operand operand;
  if (!parse_dtype(json.at("dtype").string(), &operand.dtype)) json.at("dtype").fail("a dtype");
  if (!parse_layout(json.at("layout").string(), &operand.layout)) json.at("layout").fail("a layout");
  const std::vector<JsonView> shape = json.at("shape").elements();
  if (shape.empty() || shape.size() > kMaxRank) json.at("shape").fail("1 to 4 extents");
  for (const JsonView& extent : shape) operand.shape[operand.rank++] = read_dim(extent);
  return operand;
}

PlanTensor read_tensor(const JsonView& json) {
  json.expect_keys({"name", "dtype", "shape", "layout", "kind", "offset"});
  PlanTensor tensor;
  tensor.name = json.at("name").string();
  if (tensor.name.size() > kMaxNameLength) json.at("name").fail("at most " + std::to_string(kMaxNameLength) + " bytes");
  const int kind = index_of(kKindNames, json.at("kind").string());
  if (kind < 0) json.at("kind").fail("input, arena, weight or cache");
  tensor.kind = static_cast<TensorKind>(kind);
  tensor.operand = read_operand(json);
  tensor.offset = json.at("offset").integer(0, kMaxBytes);
  return tensor;
}

std::vector<int> read_operand_list(const JsonView& json, std::size_t num_tensors) {
  std::vector<int> operands;
  for (const JsonView& index : json.elements()) {
    operands.push_back(static_cast<int>(index.integer(kAbsent, static_cast<std::int64_t>(num_tensors) - 1)));
  }
  return operands;
}

std::vector<AttributeValue> read_attributes(const OpSchema& schema, const JsonView& json) {
  std::vector<AttributeValue> values;
  for (const AttributeSpec& spec : schema.attributes) {
    const JsonView attribute = json.at(std::string(spec.name));
    AttributeValue value;
    if (spec.is_float) {
      value.f = attribute.finite_number();
    } else {
      value.i = attribute.integer(-kMaxExtent, kMaxExtent);
    }
    values.push_back(value);
  }
  if (json.members().size() != values.size()) json.fail("no attributes but those of the operator");
  return values;
}

Instruction read_instruction(const JsonView& json, std::size_t num_tensors) {
  json.expect_keys({"kind", "op", "inputs", "outputs", "attributes"});
  if (json.at("kind").string() != "call") json.at("kind").fail("\"call\"");
  Instruction instruction;
  instruction.schema = find_op(json.at("op").string());
  if (instruction.schema == nullptr) json.at("op").fail("an operator that this build has");
  instruction.inputs = read_operand_list(json.at("inputs"), num_tensors);
  instruction.outputs = read_operand_list(json.at("outputs"), num_tensors);
  instruction.attributes = read_attributes(*instruction.schema, json.at("attributes"));
  return instruction;
}

}  // namespace

Plan read_plan(const JsonView& json) {
  json.expect_keys({"symbols", "arena_bytes", "tensors", "outputs", "instructions"});
  Plan plan;
  plan.bounds = read_bounds(json.at("symbols"));
  plan.arena_bytes = json.at("arena_bytes").integer(0, kMaxBytes);
  std::set<std::string> names;
  for (const JsonView& tensor : json.at("tensors").elements()) {
    plan.tensors.push_back(read_tensor(tensor));
    if (!names.insert(plan.tensors.back().name).second) tensor.at("name").fail("a name that no other tensor has");
  }
  for (const JsonView& instruction : json.at("instructions").elements()) {
    plan.instructions.push_back(read_instruction(instruction, plan.tensors.size()));
  }
  const JsonView outputs = json.at("outputs");
  outputs.expect_keys({"logits"});
  plan.logits = static_cast<int>(outputs.at("logits").integer(0, static_cast<std::int64_t>(plan.tensors.size()) - 1));
  return plan;
}

}  // namespace tl
