// The plugin schemas in C++. plugins/generate_cpp.py writes the tables from plugins/*/schema.toml.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/kernel.h"
#include "engine/vocabulary.h"

namespace tl {

template <typename Enum>
constexpr std::uint32_t bit(Enum value) {
  return 1u << static_cast<unsigned>(value);
}

// An extent of a schema. `symbol` is an index into OpSchema::symbols; -1 means the integer `value`.
struct ExtentSpec {
  int symbol = -1;
  std::int64_t value = 0;
};

struct ArgumentSpec {
  std::string_view name;
  std::uint32_t dtypes = 0;   // bits of DType
  std::uint32_t layouts = 0;  // bits of Layout
  bool optional = false;
  int alias = -1;               // for outputs: the input whose storage the output shares
  std::string_view step_input;  // for int32 inputs: the step input that must be passed here
  bool state = false;           // memory kept between steps; for outputs: the operator adds to it
  bool constant = false;        // for int32 inputs: a weight whose values are indices
  int below = -1;               // the symbol that is an upper bound of the values of the step input or constant
  int present_with = -1;        // an optional input that must be present if and only if this one is
  int scaled_by = -1;           // an optional input that must be present if and only if this one's dtype needs scales
  int rank = 0;
  ExtentSpec shape[kMaxRank] = {};
};

enum class AttributeKind : std::uint8_t { kInt, kFloat, kChoice, kText };

struct AttributeSpec {
  std::string_view name;
  AttributeKind kind;
  std::span<const std::string_view> choices;  // the choices of kChoice
};

// The kinds of text that a text attribute may hold.
struct TextRules {
  std::string_view characters;
  std::size_t max_length;
};

// A relation between extents (by symbol) and attributes (by position) that a valid call satisfies.
struct ConstraintSpec {
  std::string_view text;
  std::uint32_t symbol_mask;  // the symbols it reads
  bool (*holds)(const std::int64_t* extents, const AttributeValue* attributes);
};

struct PlanTensor;

// The check in the check.h beside a schema. Returns what is wrong with a call that fits the schema; empty if nothing
// is.
using CallCheck = std::string (*)(std::span<const PlanTensor* const> inputs,
                                  std::span<const AttributeValue> attributes);

constexpr int kMaxSymbols = 32;

struct OpSchema {
  std::string_view name;
  std::span<const std::string_view> symbols;
  std::span<const ArgumentSpec> inputs;
  std::span<const ArgumentSpec> outputs;
  std::span<const AttributeSpec> attributes;
  std::span<const ConstraintSpec> constraints;
  CallCheck check;  // null: the schema is sufficient
};

// Generated.
std::span<const OpSchema> op_schemas();
const TextRules& text_rules();

// The texts to which the attributes of a call point; shared, so that calls may be copied and moved.
using AttributeTexts = std::vector<std::shared_ptr<const std::string>>;

// The value of a choice or text attribute; empty if `spec` does not allow `text` (expected_text(spec) says what it
// allows). A text is stored in `texts`.
std::optional<AttributeValue> parse_text(const AttributeSpec& spec, std::string_view text, AttributeTexts* texts);
std::string expected_text(const AttributeSpec& spec);

// Null if there is no such operator.
const OpSchema* find_op(std::string_view name);

}  // namespace tl
