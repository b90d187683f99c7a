#include "engine/op_schema.h"

#include <algorithm>
#include <array>

namespace tl {
namespace {

// Indexed by the enumerators' values.
constexpr std::array<std::string_view, 4> kDTypeNames{"float32", "float16", "bfloat16", "int32"};
constexpr std::array<std::int64_t, 4> kItemSizes{4, 2, 2, 4};
constexpr std::array<std::string_view, 3> kLayoutNames{"row_major", "panel64", "gated_panel64"};

template <typename Enum, std::size_t N>
bool parse(const std::array<std::string_view, N>& names, std::string_view text, Enum* value) {
  const auto found = std::ranges::find(names, text);
  if (found == names.end()) return false;
  *value = static_cast<Enum>(found - names.begin());
  return true;
}

}  // namespace

const OpSchema* find_op(std::string_view name) {
  const auto found = std::ranges::find(op_schemas(), name, &OpSchema::name);
  return found == op_schemas().end() ? nullptr : &*found;
}

std::string_view to_string(DType dtype) { return kDTypeNames[static_cast<std::size_t>(dtype)]; }
std::string_view to_string(Layout layout) { return kLayoutNames[static_cast<std::size_t>(layout)]; }
bool parse_dtype(std::string_view text, DType* dtype) { return parse(kDTypeNames, text, dtype); }
bool parse_layout(std::string_view text, Layout* layout) { return parse(kLayoutNames, text, layout); }
std::int64_t item_size(DType dtype) { return kItemSizes[static_cast<std::size_t>(dtype)]; }

}  // namespace tl
