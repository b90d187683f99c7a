// The entry of a plugin's library, and ThreadPool for its kernels. One file of the library includes this header, the
// one that plugins/generate_cpp.py makes, which defines kLibrary.
#pragma once

#include "cpu/plugin_library.h"
#include "host/thread_pool.h"

namespace tl {
namespace {

const HostFunctions* host = nullptr;

}  // namespace

void ThreadPool::run(std::int64_t num_tasks, TaskRef task) {
  host->parallel_for(this, num_tasks, task.callable, task.invoke);
}

int ThreadPool::num_threads() const { return host->num_threads(this); }

void* ThreadPool::scratch(int thread) const { return host->scratch(this, thread); }

void* ThreadPool::shared_scratch() const { return host->shared_scratch(this); }

}  // namespace tl

extern "C" __attribute__((visibility("default"))) const tl::PluginLibrary* trtllm_lite_plugin(
    const tl::HostFunctions* host) {
  tl::host = host;
  return &tl::kLibrary;
}
