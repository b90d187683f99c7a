#include "engine/checks/call_flow.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "engine/call.h"
#include "engine/checks/call_check.h"
#include "errors.h"

namespace tl {
namespace {

// Tracks which tensors the arena holds. Writing a tensor ends the life of every tensor that it overlaps.
class ArenaContents {
 public:
  void write(int tensor, std::int64_t begin, std::int64_t end) {
    auto range = live_.lower_bound(begin);
    if (range != live_.begin() && std::prev(range)->second.end > begin) --range;
    while (range != live_.end() && range->first < end) range = live_.erase(range);
    live_[begin] = {end, tensor};
  }

  bool holds(int tensor, std::int64_t begin) const {
    const auto range = live_.find(begin);
    return range != live_.end() && range->second.tensor == tensor;
  }

 private:
  struct Range {
    std::int64_t end;
    int tensor;
  };
  std::map<std::int64_t, Range> live_;  // disjoint ranges of the arena, by their begin
};

class CallFlow {
 public:
  CallFlow(const Plan& plan, const Container& container, std::int64_t tokens_per_block)
      : plan_(plan), container_(container) {
    // A schema symbol with the name of a step symbol has that symbol's value; kernels rely on it when they use step
    // inputs.
    for (int symbol = 0; symbol < kNumSymbols; ++symbol) {
      known_[kSymbolNames[symbol]] = {0, static_cast<Symbol>(symbol)};
    }
    known_["tokens_per_block"] = {tokens_per_block, std::nullopt};
  }

  std::vector<ValueBound> check() {
    receive();
    const std::vector<Instruction>& instructions = plan_.programs.front().instructions;
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      try {
        check_instruction(instructions[i]);
      } catch (const EngineError& error) {
        throw EngineError("plan.programs[0].instructions[" + std::to_string(i) + "]: " + error.what());
      }
    }
    for (const auto& [name, index] : plan_.outputs) {
      if (is_readable(index)) continue;
      throw EngineError("plan.outputs." + name +
                        ": expected an arena tensor that holds the result, found one that does not");
    }
    return std::move(value_bounds_);
  }

 private:
  const PlanTensor& tensor(int index) const { return plan_.tensors[static_cast<std::size_t>(index)]; }

  bool is_readable(int index) const {
    return tensor(index).kind != TensorKind::kArena || contents_.holds(index, tensor(index).offset);
  }

  // Values received from another stage are in the arena when the step begins.
  void receive() {
    for (const auto& [name, index] : plan_.inputs) contents_.write(index, tensor(index).offset, end_of(index));
    for (const auto& [name, index] : plan_.inputs) {
      if (!is_readable(index)) throw EngineError("plan.inputs." + name + ": expected storage of its own");
    }
  }

  void check_instruction(const Instruction& instruction) {
    if (const auto* call = std::get_if<CallInstruction>(&instruction)) return check_one_call(resolve(*call));
    check_collective(std::get<CollectiveInstruction>(instruction));
  }

  // A collective reads and writes whole tensors, which must have the dtype and features that the collective names.
  void check_collective(const CollectiveInstruction& collective) {
    check_collective_operand(collective.x, collective.x_features, collective.dtype);
    check_collective_operand(collective.y, collective.y_features, collective.dtype);
    const int x = collective.x.tensor, y = collective.y.tensor;
    if (collective.op == CollectiveOp::kAllGatherRows) {
      throw EngineError("collective: expected AllReduce or AllGather on a CPU, found AllGatherRows");
    }
    if (collective.dtype != DType::kFloat32) throw EngineError("collective: expected the dtype float32 on a CPU");
    if (collective.op == CollectiveOp::kAllReduce && collective.x_features != collective.y_features) {
      throw EngineError("collective: expected an AllReduce whose x and y have equally many features");
    }
    if (tensor(x).shape[0] != tensor(y).shape[0])
      throw EngineError("collective: expected x and y of equally many rows");
    if (!is_readable(x)) throw EngineError("collective: expected a tensor that holds a value, found " + tensor(x).name);
    // ranks write into each other's y while others read their x
    if (overlaps(x, y)) throw EngineError("collective: expected y in storage of its own, found that it overlaps x");
    contents_.write(y, tensor(y).offset, end_of(y));
  }

  void check_collective_operand(const TensorArgument& argument, std::int64_t features, DType dtype) const {
    const PlanTensor& operand = tensor(argument.tensor);
    const bool matches = operand.kind == TensorKind::kArena && operand.dtype == dtype && operand.shape.size() == 2 &&
                         operand.shape[1] == Dim{features, std::nullopt} && argument.offset.constant == 0 &&
                         argument.offset.terms.empty();
    if (!matches) throw EngineError("collective: expected x and y to be whole arena tensors of its dtype and features");
  }

  // No operator of a CPU engine reads state: the KV cache is all that a step leaves for the next. (Some operators only
  // add to counts in the state.)
  static void check_reads_no_state(const OpSchema& schema) {
    const auto kept = std::ranges::find_if(schema.inputs, &ArgumentSpec::state);
    if (kept == schema.inputs.end()) return;
    throw EngineError("operator " + std::string(schema.name) +
                      ": expected an operator of CPU engines, found that it keeps " + std::string(kept->name) +
                      " between steps, as GPU programs alone do");
  }

  void check_one_call(const ResolvedCall& call) {
    const OpSchema& schema = *call.schema;
    check_reads_no_state(schema);
    const SymbolBindings bindings =
        check_call(schema, operands(call.inputs), operands(call.outputs), call.attributes, known_);
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      if (call.inputs[i] != kAbsent) check_input(schema, schema.inputs[i], call.inputs[i], bindings);
    }
    for (std::size_t i = 0; i < call.outputs.size(); ++i) {
      if (call.outputs[i] != kAbsent) check_output(call, i);
    }
    for (const int output : call.outputs) {
      if (output != kAbsent && tensor(output).kind == TensorKind::kArena) {
        contents_.write(output, tensor(output).offset, end_of(output));
      }
    }
  }

  std::vector<const PlanTensor*> operands(const std::vector<int>& indices) const {
    std::vector<const PlanTensor*> result;
    for (const int index : indices) result.push_back(index == kAbsent ? nullptr : &tensor(index));
    return result;
  }

  void check_input(const OpSchema& schema, const ArgumentSpec& spec, int index, const SymbolBindings& bindings) {
    if (!is_readable(index)) {
      throw EngineError("input " + std::string(spec.name) + ": expected a tensor that holds a value, found " +
                        tensor(index).name + ", which was never written or has been overwritten");
    }
    if (spec.constant) {
      check_indices(spec, tensor(index), bindings.at(schema.symbols[static_cast<std::size_t>(spec.below)]));
    }
    if (*spec.step_input == '\0') return;
    if (tensor(index).kind != TensorKind::kInput || tensor(index).name != spec.step_input) {
      throw EngineError("input " + std::string(spec.name) + ": expected the step input " +
                        std::string(spec.step_input) + ", found " + tensor(index).name);
    }
    if (spec.below < 0) return;
    const ValueBound bound{step_input_index(spec.step_input),
                           bindings.at(schema.symbols[static_cast<std::size_t>(spec.below)])};
    if (std::ranges::find(value_bounds_, bound) == value_bounds_.end()) value_bounds_.push_back(bound);
  }

  void check_indices(const ArgumentSpec& spec, const PlanTensor& indices, const Dim& bound) const {
    const std::string where = "input " + std::string(spec.name) + ": ";
    if (indices.kind != TensorKind::kWeight || bound.symbol) {
      throw EngineError(where + "expected a weight of indices below a fixed extent, found " + indices.name);
    }
    const std::span<const std::byte> stored = container_.at("weights." + indices.name).bytes;
    for (std::size_t at = 0; at < stored.size(); at += sizeof(std::int32_t)) {
      std::int32_t value;
      std::memcpy(&value, stored.data() + at, sizeof value);
      if (value >= 0 && value < bound.value) continue;
      throw EngineError(where + "expected indices from 0 to " + std::to_string(bound.value - 1) + ", found " +
                        std::to_string(value) + " in " + indices.name);
    }
  }

  void check_output(const ResolvedCall& call, std::size_t position) const {
    const ArgumentSpec& spec = call.schema->outputs[position];
    const int index = call.outputs[position];
    const std::string where = "output " + std::string(spec.name) + ": ";
    for (std::size_t other = 0; other < call.outputs.size(); ++other) {
      if (other != position && overlaps(index, call.outputs[other])) {
        throw EngineError(where + "expected storage of its own, found that it overlaps another output");
      }
    }
    const TensorKind kind = tensor(index).kind;
    if (spec.alias >= 0 && index != call.inputs[static_cast<std::size_t>(spec.alias)]) {
      throw EngineError(where + "expected the tensor of the input that it updates, found " + tensor(index).name);
    }
    if (spec.state != (kind == TensorKind::kState)) {
      throw EngineError(where + "expected " + (spec.state ? "state" : "no state") + ", found " + tensor(index).name);
    }
    if (kind != TensorKind::kArena && kind != TensorKind::kState && !(kind == TensorKind::kCache && spec.alias >= 0)) {
      throw EngineError(where + "expected an arena tensor, found " + tensor(index).name);
    }
    for (std::size_t input = 0; input < call.inputs.size(); ++input) {
      if (static_cast<int>(input) != spec.alias && overlaps(index, call.inputs[input])) {
        throw EngineError(where + "expected storage apart from the inputs, found that it overlaps " +
                          std::string(call.schema->inputs[input].name));
      }
    }
  }

  std::int64_t end_of(int index) const { return tensor(index).offset + max_bytes(plan_, tensor(index)); }

  bool overlaps(int a, int b) const {
    if (a == kAbsent || b == kAbsent) return false;
    if (a == b) return true;
    if (tensor(a).kind != TensorKind::kArena || tensor(b).kind != TensorKind::kArena) return false;
    return tensor(a).offset < end_of(b) && tensor(b).offset < end_of(a);
  }

  const Plan& plan_;
  const Container& container_;
  SymbolBindings known_;
  ArenaContents contents_;
  std::vector<ValueBound> value_bounds_;
};

}  // namespace

std::vector<ValueBound> check_calls(const Plan& plan, const Container& container, std::int64_t tokens_per_block) {
  return CallFlow(plan, container, tokens_per_block).check();
}

}  // namespace tl
