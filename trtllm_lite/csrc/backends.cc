#include "backends.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cpu/cpu_executor.h"
#include "cuda/cuda_executor.h"
#include "errors.h"
#include "network/network_executor.h"

namespace tl {
namespace {

struct Backend {
  TargetKind kind;
  std::unique_ptr<DeviceExecutor> (*open)(const Engine& engine, OpenOptions options);
};

std::unique_ptr<DeviceExecutor> open_cpu(const Engine& engine, OpenOptions options) {
  const auto* features_of = dynamic_cast<const CpuExecutor*>(options.features_of);
  return std::make_unique<CpuExecutor>(engine, options.num_threads, options.num_blocks, "auto", features_of);
}

std::unique_ptr<DeviceExecutor> open_cuda(const Engine& engine, OpenOptions options) {
  const auto* features_of = dynamic_cast<const cuda::CudaExecutor*>(options.features_of);
  return std::make_unique<cuda::CudaExecutor>(engine, 0, options.num_blocks, options.library_directories, features_of,
                                              options.num_loras);
}

std::unique_ptr<DeviceExecutor> open_network(const Engine& engine, OpenOptions options) {
  if (options.network == nullptr) throw ArgumentError("network: expected one that runs the engine's, found none");
  return std::make_unique<NetworkExecutor>(engine, options.num_blocks, std::move(options.network));
}

constexpr Backend kBackends[] = {
    {TargetKind::kCpu, open_cpu}, {TargetKind::kCuda, open_cuda}, {TargetKind::kTensorrt, open_network}};

}  // namespace

std::unique_ptr<DeviceExecutor> open_executor(const Engine& engine, OpenOptions options) {
  const TargetKind kind = engine.manifest().target.kind;
  const auto found = std::ranges::find(kBackends, kind, &Backend::kind);
  if (found == std::end(kBackends)) {
    throw EngineError("target: expected a kind of device that this build runs engines on, found " +
                      std::string(to_string(kind)));
  }
  return found->open(engine, std::move(options));
}

}  // namespace tl
