#include "engine/operators.h"

#include <algorithm>

#include "engine/plugins.h"

namespace tl {

const OpSchema* find_op(std::string_view name) {
  const auto found = std::ranges::find_if(op_schemas(), [&](const OpSchema& schema) { return schema.name == name; });
  return found == op_schemas().end() ? find_plugin_op(name) : &*found;
}

std::optional<AttributeValue> parse_text(const AttributeSpec& spec, std::string_view text, AttributeTexts* texts) {
  AttributeValue value;
  if (spec.kind == AttributeKind::kChoice) {
    const auto* const found = std::ranges::find_if(spec.choices, [&](const char* choice) { return choice == text; });
    if (found == spec.choices.end()) return std::nullopt;
    value.i = found - spec.choices.begin();
    return value;
  }
  const TextRules& rules = text_rules();
  if (text.size() > rules.max_length || text.find_first_not_of(rules.characters) != text.npos) return std::nullopt;
  texts->push_back(std::make_shared<const std::string>(text));
  value.s = texts->back()->c_str();
  return value;
}

std::string expected_text(const AttributeSpec& spec) {
  if (spec.kind == AttributeKind::kText) {
    return "at most " + std::to_string(text_rules().max_length) + " characters of \"" +
           std::string(text_rules().characters) + "\"";
  }
  std::string listed = "one of";
  for (const char* const choice : spec.choices) listed.append(" ").append(choice);
  return listed;
}

}  // namespace tl
