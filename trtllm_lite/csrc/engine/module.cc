#include "engine/module.h"

#include <algorithm>
#include <iterator>

namespace tl {

std::vector<Port> ports(const std::vector<Port>& all, bool cached) {
  std::vector<Port> found;
  std::ranges::copy_if(all, std::back_inserter(found), [&](const Port& port) { return is_cached(port) == cached; });
  return found;
}

std::int64_t block_bytes(const Port& port) {
  std::int64_t bytes = item_size(port.dtype);
  for (std::size_t axis = 1; axis < port.shape.size(); ++axis) bytes *= port.shape[axis].value;
  return bytes;
}

std::string text_of(const Port& port) {
  std::string extents;
  for (const Dim& dim : port.shape) {
    if (!extents.empty()) extents += ", ";
    extents += dim.symbol ? std::string(to_string(*dim.symbol)) : std::to_string(dim.value);
  }
  return port.name + " " + std::string(to_string(port.dtype)) + " [" + extents + "]";
}

std::int64_t token_row_bytes(const Module& module) {
  const auto found = std::ranges::find(module.inputs, kStepInputs[kTokenRows].name, &Port::name);
  return found == module.inputs.end() ? 0 : found->shape.back().value * item_size(found->dtype);
}

bool is_same(const Port& one, const Port& other) {
  return one.name == other.name && one.dtype == other.dtype && one.shape == other.shape;
}

}  // namespace tl
