// The plugin schemas as C++ sees them. plugins/generate_cpp.py writes the tables from plugins/*/schema.toml.
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

// An extent of a schema: `symbol` counts into OpSchema::symbols; -1 means the integer `value`.
struct ExtentSpec {
  int symbol = -1;
  std::int64_t value = 0;
};

struct ArgumentSpec {
  std::string_view name;
  std::uint32_t dtypes = 0;   // bits of DType
  std::uint32_t layouts = 0;  // bits of Layout
  bool optional = false;
  int alias = -1;               // outputs: the input whose storage this is
  std::string_view step_input;  // int32 inputs: the step input that must be passed here
  bool state = false;           // memory that is kept between steps; outputs: the operator adds to it
  bool constant = false;        // int32 inputs: a weight whose values are indices
  int below = -1;               // the symbol that bounds the values of the step input or constant from above
  int present_with = -1;        // the optional input that is there if and only if this one is
  int scaled_by = -1;           // the optional input that is there if and only if this one's dtype wants scales
  int rank = 0;
  ExtentSpec shape[kMaxRank] = {};
};

enum class AttributeKind : std::uint8_t { kInt, kFloat, kChoice, kText };

struct AttributeSpec {
  std::string_view name;
  AttributeKind kind;
  std::span<const std::string_view> choices;  // of kChoice
};

// The kind of text that a text attribute may hold.
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

// The check in the check.h beside a schema: what is wrong with a call that fits the schema; empty if nothing is.
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
  CallCheck check;  // null: the schema says everything
};

// Generated.
std::span<const OpSchema> op_schemas();
const TextRules& text_rules();

// The texts that attributes of one call point to; shared, so that calls may be copied and moved.
using AttributeTexts = std::vector<std::shared_ptr<const std::string>>;

// The value of a choice or text attribute, or nothing if `text` is not one that `spec` allows; what it would allow is
// expected_text(spec). A text is kept in `texts`.
std::optional<AttributeValue> parse_text(const AttributeSpec& spec, std::string_view text, AttributeTexts* texts);
std::string expected_text(const AttributeSpec& spec);

// Null if there is no such operator.
const OpSchema* find_op(std::string_view name);

}  // namespace tl
