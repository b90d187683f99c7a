// What a shared library with the CPU kernels of another package hands to the runtime: the ABI of plugins.
//
// Both sides include this header, and nothing of the standard library crosses between them. A library only keeps the
// pointer to what the runtime gives it, and its `abi` comes first in every version, so that the runtime can refuse it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernel.h"
#include "engine/op_schema.h"

namespace tl {

// The version of everything that is declared here, in cpu/kernel.h and in engine/op_schema.h, of the order of types in
// dtypes.h, and of what the members of ThreadPool that kernels call promise. A change of any of these raises it.
constexpr std::int32_t kPluginAbi = 1;

using TaskFunction = void (*)(void* callable, std::int64_t task, int thread);

// What kernels ask of the runtime: the members of ThreadPool (host/thread_pool.h) that they call.
struct HostFunctions {
  void (*parallel_for)(ThreadPool* pool, std::int64_t num_tasks, void* callable, TaskFunction invoke);
  int (*num_threads)(const ThreadPool* pool);
  void* (*scratch)(const ThreadPool* pool, int thread);
  void* (*shared_scratch)(const ThreadPool* pool);
};

struct PluginLibrary {
  std::int32_t abi;
  const char* built_with;  // the version of trtllm_lite whose headers it was compiled with
  const char* digest;      // of the schemas that it was compiled with (plugins/packages.py)
  List<OpSchema> schemas;
  List<KernelEntry> kernels;
};

// The library's only symbol, `trtllm_lite_plugin`. The runtime calls it once; the result lives as long as the process.
using PluginEntry = const PluginLibrary* (*)(const HostFunctions* host);

static_assert(sizeof(void*) == 8 && sizeof(Tensor) == 56 && sizeof(KernelArgs) == 56 && sizeof(LowRankPart) == 24,
              "kernels' arguments have changed: raise kPluginAbi");
static_assert(sizeof(OpSchema) == 88 && sizeof(ArgumentSpec) == 120 && sizeof(AttributeSpec) == 32 &&
                  sizeof(ConstraintSpec) == 24 && sizeof(KernelEntry) == 24,
              "schemas have changed: raise kPluginAbi");
static_assert(static_cast<int>(DType::kFloat4E2m1fn) == 11 && static_cast<int>(Layout::kRows8) == 8,
              "types or layouts have other numbers: raise kPluginAbi");

}  // namespace tl
