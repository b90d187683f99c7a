#include "engine/checks/call_check.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "errors.h"

namespace tl {
namespace {

constexpr std::int64_t kPanel = 64;
constexpr std::int64_t kWord = 8;  // 4-bit elements in 32 bits

class CallChecker {
 public:
  CallChecker(const OpSchema& schema, SymbolBindings bindings) : schema_(schema), bindings_(std::move(bindings)) {}

  void check_operands(std::string_view role, const List<ArgumentSpec>& specs,
                      std::span<const PlanTensor* const> operands) {
    if (specs.size() != operands.size()) {
      fail(std::string(role) + "s: expected " + std::to_string(specs.size()) + ", found " +
           std::to_string(operands.size()));
    }
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const std::string where = std::string(role) + " " + std::string(specs[i].name);
      if (operands[i] != nullptr) {
        check_operand(where, specs[i], *operands[i]);
      } else if (!specs[i].optional) {
        fail(where + ": expected an operand, found none");
      }
      const int scales = specs[i].scaled_by;
      if (scales >= 0 && operands[i] != nullptr &&
          kIsScaled[static_cast<int>(operands[i]->dtype)] != (operands[static_cast<std::size_t>(scales)] != nullptr)) {
        fail(where + ": expected " + std::string(specs[static_cast<std::size_t>(scales)].name) +
             " if and only if the dtype wants scales, found dtype " + std::string(to_string(operands[i]->dtype)));
      }
      const int partner = specs[i].present_with;
      if (partner >= 0 && (operands[i] == nullptr) != (operands[static_cast<std::size_t>(partner)] == nullptr)) {
        fail(where + ": expected an operand if and only if there is one for " +
             std::string(specs[static_cast<std::size_t>(partner)].name));
      }
    }
  }

  void check_constraints(std::span<const AttributeValue> attributes) const {
    std::int64_t extents[kMaxSymbols] = {};
    std::uint32_t bound_symbols = 0, integers = 0;
    for (std::size_t i = 0; i < schema_.symbols.size(); ++i) {
      const auto bound = bindings_.find(schema_.symbols[i]);
      if (bound == bindings_.end()) continue;
      bound_symbols |= 1u << i;
      if (bound->second.symbol.has_value()) continue;
      extents[i] = bound->second.value;
      integers |= 1u << i;
    }
    for (const ConstraintSpec& constraint : schema_.constraints) {
      if ((constraint.symbol_mask & ~bound_symbols) != 0) continue;  // the constraint is about an absent operand
      const std::uint32_t varying = constraint.symbol_mask & ~integers;
      if (varying != 0) {
        fail("expected " + std::string(constraint.text) + " for fixed extents, found that " +
             std::string(schema_.symbols[static_cast<std::size_t>(std::countr_zero(varying))]) +
             " changes from step to step");
      }
      if (!constraint.holds(extents, attributes.data())) fail(describe(constraint, extents, attributes));
    }
  }

  void check_rest(std::span<const PlanTensor* const> inputs, std::span<const AttributeValue> attributes) const {
    const CallCheck check = call_check_of(schema_.name);
    if (check == nullptr) return;
    const std::string problem = check(inputs, attributes);
    if (!problem.empty()) fail(problem);
  }

  SymbolBindings take_bindings() { return std::move(bindings_); }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw EngineError("operator " + std::string(schema_.name) + ": " + message);
  }

  void check_operand(const std::string& where, const ArgumentSpec& spec, const PlanTensor& operand) {
    if ((spec.dtypes & bit(operand.dtype)) == 0) {
      fail(where + ": dtype " + std::string(to_string(operand.dtype)) + " is not one that the operator takes");
    }
    if ((spec.layouts & bit(operand.layout)) == 0) {
      fail(where + ": layout " + std::string(to_string(operand.layout)) + " is not one that the operator takes");
    }
    if (!std::cmp_equal(spec.rank, operand.shape.size())) {
      fail(where + ": expected rank " + std::to_string(spec.rank) + ", found " + std::to_string(operand.shape.size()));
    }
    for (std::size_t axis = 0; axis < operand.shape.size(); ++axis) {
      check_extent(where, axis, spec.shape[axis], operand.shape[axis]);
    }
  }

  void check_extent(const std::string& where, std::size_t axis, const ExtentSpec& spec, const Dim& found) {
    Dim expected{spec.value, std::nullopt};
    std::string name;
    if (spec.symbol >= 0) {
      const std::string_view symbol = schema_.symbols[static_cast<std::size_t>(spec.symbol)];
      expected = bindings_.try_emplace(symbol, found).first->second;
      name = std::string(symbol) + " = ";
    }
    if (expected == found) return;
    fail(where + ": axis " + std::to_string(axis) + ": expected " + name + to_string(expected) + ", found " +
         to_string(found));
  }

  std::string describe(const ConstraintSpec& constraint, const std::int64_t* extents,
                       std::span<const AttributeValue> attributes) const {
    std::string message = "expected " + std::string(constraint.text) + ", found";
    for (std::size_t i = 0; i < schema_.symbols.size(); ++i) {
      if ((constraint.symbol_mask >> i & 1u) == 0) continue;
      message += " " + std::string(schema_.symbols[i]) + "=" + std::to_string(extents[i]);
    }
    for (std::size_t i = 0; i < schema_.attributes.size(); ++i) {
      if (schema_.attributes[i].kind != AttributeKind::kInt) continue;
      message += " " + std::string(schema_.attributes[i].name) + "=" + std::to_string(attributes[i].i);
    }
    return message;
  }

  const OpSchema& schema_;
  SymbolBindings bindings_;
};

}  // namespace

SymbolBindings check_call(const OpSchema& schema, std::span<const PlanTensor* const> inputs,
                          std::span<const PlanTensor* const> outputs, std::span<const AttributeValue> attributes,
                          SymbolBindings bindings) {
  CallChecker checker(schema, std::move(bindings));
  checker.check_operands("input", schema.inputs, inputs);
  checker.check_operands("output", schema.outputs, outputs);
  checker.check_constraints(attributes);
  checker.check_rest(inputs, attributes);
  return checker.take_bindings();
}

std::vector<std::int64_t> stored_shape(Layout layout, DType dtype, const std::vector<std::int64_t>& logical) {
  const std::int64_t per_item = elements_per_item(dtype);
  const bool in_words = per_item > 1;  // panels consist of words of 8 elements
  if (logical.empty() || (in_words && logical.back() % (layout == Layout::kRowMajor ? per_item : kWord) != 0))
    return {};
  const auto panels = [&](std::int64_t width) -> std::vector<std::int64_t> {
    const std::int64_t features = logical[logical.size() - 2], depth = logical.back();
    const std::int64_t count = (features + width - 1) / width;
    if (in_words) return {count, depth / kWord, kPanel * kWord / per_item};
    return {count, depth, kPanel};
  };
  const auto panels_of_experts = [&](std::int64_t width) {
    std::vector<std::int64_t> all = panels(width);
    all.insert(all.begin(), logical[0]);
    return all;
  };
  std::vector<std::int64_t> rows = logical;
  rows.back() /= per_item;
  switch (layout) {
    case Layout::kRowMajor:
      return rows;
    case Layout::kPanel64:
      if (logical.size() == 3) return panels_of_experts(kPanel);
      if (logical.size() != 2) return {};
      return panels(kPanel);
    case Layout::kMmaK16:
    case Layout::kSpreadE4m3:
      if (in_words || logical.back() % 16 != 0) return {};
      return rows;
    case Layout::kPairs8:
      if (!in_words || logical.back() % 8 != 0) return {};
      return rows;
    case Layout::kPairs32:
    case Layout::kSpreadE2m1:
      if (!in_words || logical.back() % 32 != 0) return {};
      return rows;
    case Layout::kRows8: {
      const std::size_t rank = logical.size();
      if (in_words || rank < 2 || logical[rank - 2] % 8 != 0) return {};
      rows[rank - 2] /= 8;
      rows.push_back(8);
      return rows;
    }
    case Layout::kGatedPanel64:
      if (logical.size() == 4 && logical[1] == 2) return panels_of_experts(kPanel / 2);
      if (logical.size() != 3 || logical[0] != 2) return {};
      return panels(kPanel / 2);
  }
  return {};
}

}  // namespace tl
