#include "cpu/kernel_registry.h"

#include <algorithm>

#include "engine/plugins.h"
#include "errors.h"

namespace tl {
namespace {

std::string joined(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::string_view name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

}  // namespace

std::vector<std::string_view> supported_isas() {
  std::vector<std::string_view> supported;
  for (const IsaEntry& isa : compiled_isas()) {
    if (isa.is_supported()) supported.push_back(isa.name);
  }
  return supported;
}

std::string_view resolve_isa(std::string_view isa) {
  const std::vector<std::string_view> supported = supported_isas();
  if (isa == "auto") return supported.front();
  const auto found = std::ranges::find(supported, isa);
  if (found != supported.end()) return *found;
  throw ArgumentError("isa: expected auto or one that this machine supports (" + joined(supported) + "), found " +
                      std::string(isa) + "; use isa=\"auto\"");
}

Kernel find_kernel(std::string_view op, std::string_view isa) {
  for (const KernelEntry& entry : kernel_table()) {
    if (entry.op == op && entry.isa == isa) return entry.kernel;
  }
  if (const Kernel kernel = find_plugin_kernel(op, isa)) return kernel;
  throw EngineError("operator " + std::string(op) + ": expected a CPU kernel for " + std::string(isa) +
                    ", found none; install a trtllm_lite that has it, or build the package of the operator again");
}

}  // namespace tl
