// Checks a call of an operator against its schema: everything that a kernel relies on but does not check.
#pragma once

#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "engine/operators.h"
#include "engine/records.h"

namespace tl {

using SymbolBindings = std::map<std::string_view, Dim>;

// Checks arity, optional operands, dtypes, layouts, ranks, shapes and constraints. Absent operands are null.
// `bindings`: schema symbols whose extents are known beforehand; the result adds those that the call binds. Throws
// EngineError whose message names the operator and the operand.
SymbolBindings check_call(const OpSchema& schema, std::span<const PlanTensor* const> inputs,
                          std::span<const PlanTensor* const> outputs, std::span<const AttributeValue> attributes,
                          SymbolBindings bindings);

// The extents of an operand as stored; empty if the layout cannot hold an operand of such a shape. panel64: [N, K] ->
// [ceil(N/64), K, 64]; gated_panel64: [2, I, K] -> [ceil(I/32), K, 64]; an axis of experts in front stays. For 4-bit
// types, words of 8 elements of a row take the place of elements, and the extents count bytes.
std::vector<std::int64_t> stored_shape(Layout layout, DType dtype, const std::vector<std::int64_t>& logical);

}  // namespace tl
