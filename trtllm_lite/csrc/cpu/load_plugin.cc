#include "cpu/load_plugin.h"

#include "cpu/kernel_registry.h"
#include "cpu/plugin_library.h"
#include "engine/plugins.h"
#include "errors.h"
#include "host/shared_library.h"
#include "host/thread_pool.h"

namespace tl {
namespace {

constexpr HostFunctions kHost = {
    .parallel_for =
        [](ThreadPool* pool, std::int64_t num_tasks, void* callable, TaskFunction invoke) {
          pool->parallel_for(num_tasks, [=](std::int64_t task, int thread) { invoke(callable, task, thread); });
        },
    .num_threads = [](const ThreadPool* pool) { return pool->num_threads(); },
    .scratch = [](const ThreadPool* pool, int thread) { return pool->scratch(thread); },
    .shared_scratch = [](const ThreadPool* pool) { return pool->shared_scratch(); },
};

PluginEntry entry_of(const std::string& path, const std::string& remedy) {
  try {
    return SharedLibrary::open({path}, remedy).function<PluginEntry>("trtllm_lite_plugin", remedy.c_str());
  } catch (const DeviceError& error) {
    throw EngineError(error.what());
  }
}

}  // namespace

std::vector<std::string> load_plugin(const std::string& path, const std::string& package, const std::string& version,
                                     const std::string& digest) {
  const std::string name = package + " " + version, remedy = "install " + package + " again";
  const PluginLibrary& library = *entry_of(path, remedy)(&kHost);
  if (library.abi != kPluginAbi) {
    throw EngineError("the CPU kernels of " + name + " (" + path + ") have version " + std::to_string(library.abi) +
                      " of the ABI of plugins, expected version " + std::to_string(kPluginAbi) +
                      ", which this trtllm_lite has: build " + package +
                      " again with this trtllm_lite, or install "
                      "versions of both that belong together");
  }
  if (library.digest != digest) {
    throw EngineError("the CPU kernels of " + name + " (" + path + ", compiled with trtllm_lite " + library.built_with +
                      ") were compiled against other schemas than its schema.toml files are: " + remedy +
                      ", so that they are compiled again");
  }
  add_plugin({package, version, path, library.schemas, library.kernels});
  std::vector<std::string> operators;
  for (const OpSchema& schema : library.schemas) {
    if (find_plugin_kernel(schema.name, resolve_isa("auto")) != nullptr) operators.emplace_back(schema.name);
  }
  return operators;
}

}  // namespace tl
