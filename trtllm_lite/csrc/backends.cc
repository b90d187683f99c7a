#include "backends.h"

#include <algorithm>
#include <iterator>

#include "cpu/cpu_executor.h"
#include "cuda/cuda_executor.h"
#include "errors.h"

namespace tl {
namespace {

struct Backend {
  TargetKind kind;
  std::unique_ptr<DeviceExecutor> (*open)(const Engine& engine, const OpenOptions& options);
};

std::unique_ptr<DeviceExecutor> open_cpu(const Engine& engine, const OpenOptions& options) {
  return std::make_unique<CpuExecutor>(engine, options.num_threads, options.num_blocks, "auto");
}

std::unique_ptr<DeviceExecutor> open_cuda(const Engine& engine, const OpenOptions& options) {
  return std::make_unique<cuda::CudaExecutor>(engine, 0, options.num_blocks, options.library_directories);
}

constexpr Backend kBackends[] = {{TargetKind::kCpu, open_cpu}, {TargetKind::kCuda, open_cuda}};

}  // namespace

std::unique_ptr<DeviceExecutor> open_executor(const Engine& engine, const OpenOptions& options) {
  const TargetKind kind = engine.manifest().target.kind;
  const auto found = std::ranges::find(kBackends, kind, &Backend::kind);
  if (found == std::end(kBackends)) {
    throw EngineError("target: expected a kind of device that this build runs engines on, found " +
                      std::string(to_string(kind)));
  }
  return found->open(engine, options);
}

}  // namespace tl
