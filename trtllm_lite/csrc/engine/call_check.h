// Checks one call of an operator against its schema: everything a kernel relies on and does not check itself.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/op_schema.h"

namespace tl {

// Quantities of a step that shapes may mention; their values differ from step to step.
enum class StepSymbol : int { kNumTokens, kNumSeqs, kNumSeqsPlus1, kNumLogits, kMaxBlocksPerSeq, kNumBlocks };
constexpr int kNumStepSymbols = 6;
constexpr std::string_view kStepSymbolNames[kNumStepSymbols] = {"num_tokens", "num_seqs",           "num_seqs_plus_1",
                                                                "num_logits", "max_blocks_per_seq", "num_blocks"};

// An extent of a plan: an integer, or a step symbol (then `value` is unused and 0).
struct Dim {
  std::int64_t value = 0;
  std::optional<StepSymbol> symbol;
  bool operator==(const Dim&) const = default;
};

std::string to_string(const Dim& dim);

struct Operand {
  DType dtype = DType::kFloat32;
  Layout layout = Layout::kRowMajor;
  int rank = 0;
  Dim shape[kMaxRank];
};

using SymbolBindings = std::map<std::string_view, Dim>;

// Checks arity, optional operands, dtypes, layouts, ranks, shapes and constraints. A null operand is an absent one.
// `bindings` holds schema symbols whose extent is known beforehand; the result adds those that the call binds.
// Throws EngineError; the message names the operator and the operand.
SymbolBindings check_call(const OpSchema& schema, std::span<const Operand* const> inputs,
                          std::span<const Operand* const> outputs, std::span<const AttributeValue> attributes,
                          SymbolBindings bindings);

// The extents of the bytes of an operand as stored; its rank goes to `rank`.
// panel64: [N, K] -> [ceil(N/64), K, 64]; gated_panel64: [2, I, K] -> [ceil(I/32), K, 64].
struct StoredShape {
  int rank = 0;
  std::int64_t shape[kMaxRank] = {};
};
StoredShape stored_shape(Layout layout, std::span<const std::int64_t> logical);

}  // namespace tl
