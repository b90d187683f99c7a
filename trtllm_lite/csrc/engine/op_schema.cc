#include "engine/op_schema.h"

#include <algorithm>

namespace tl {

const OpSchema* find_op(std::string_view name) {
  const auto found = std::ranges::find(op_schemas(), name, &OpSchema::name);
  return found == op_schemas().end() ? nullptr : &*found;
}

}  // namespace tl
