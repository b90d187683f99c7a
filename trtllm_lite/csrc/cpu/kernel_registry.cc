#include "cpu/kernel_registry.h"

#include <algorithm>
#include <iterator>

#include "errors.h"

namespace tl {
namespace {

// Whether the machine has the features that CMakeLists.txt compiles each instruction set for.
bool machine_has(std::string_view isa) {
#if defined(__x86_64__)
  if (isa == "avx2") {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  }
  if (isa == "avx512") {
    return machine_has("avx2") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return isa == "portable";
}

std::string joined(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::string_view name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

}  // namespace

std::vector<std::string_view> supported_isas() {
  std::vector<std::string_view> supported;
  std::ranges::copy_if(compiled_isas(), std::back_inserter(supported), machine_has);
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
  throw EngineError("operator " + std::string(op) + ": expected a CPU kernel for " + std::string(isa) +
                    ", found none in this build; install a trtllm_lite that has it");
}

}  // namespace tl
