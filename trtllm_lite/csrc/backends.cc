#include "backends.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "cpu/cpu_executor.h"
#include "cpu/cpu_group.h"
#include "cuda/cuda_executor.h"
#include "errors.h"
#include "network/network_executor.h"

namespace tl {
namespace {

struct Backend {
  TargetKind kind;
  std::unique_ptr<DeviceExecutor> (*open)(std::span<const Engine* const> ranks, OpenOptions options);
};

// The engine of what runs on one device alone.
const Engine& only(std::span<const Engine* const> ranks) {
  const RankMapping& mapping = ranks.front()->manifest().mapping;
  if (ranks.size() == 1 && mapping.tp_size == 1) return *ranks.front();
  throw EngineError("expected an engine of one rank, found one of " + std::to_string(mapping.tp_size) +
                    ": engines of this kind run on one device; build it with --tp_size 1");
}

std::unique_ptr<DeviceExecutor> open_cpu(std::span<const Engine* const> ranks, OpenOptions options) {
  if (ranks.size() > 1) {
    const auto timeout =
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(options.rank_timeout));
    auto meeting = std::make_unique<RankMeeting>(static_cast<int>(ranks.size()), timeout);
    return std::make_unique<CpuGroup>(ranks, options.num_threads, options.num_blocks, std::move(meeting));
  }
  const Engine& engine = *ranks.front();
  const auto* features_of = dynamic_cast<const CpuExecutor*>(options.features_of);
  return std::make_unique<CpuExecutor>(engine, options.num_threads, options.num_blocks, "auto", features_of);
}

std::unique_ptr<DeviceExecutor> open_cuda(std::span<const Engine* const> ranks, OpenOptions options) {
  const Engine& engine = only(ranks);
  const auto* features_of = dynamic_cast<const cuda::CudaExecutor*>(options.features_of);
  return std::make_unique<cuda::CudaExecutor>(engine, 0, options.num_blocks, options.library_directories, features_of,
                                              options.num_loras);
}

std::unique_ptr<DeviceExecutor> open_network(std::span<const Engine* const> ranks, OpenOptions options) {
  const Engine& engine = only(ranks);
  if (options.network == nullptr) throw ArgumentError("network: expected one that runs the engine's, found none");
  return std::make_unique<NetworkExecutor>(engine, options.num_blocks, std::move(options.network));
}

constexpr Backend kBackends[] = {
    {TargetKind::kCpu, open_cpu}, {TargetKind::kCuda, open_cuda}, {TargetKind::kTensorrt, open_network}};

}  // namespace

std::unique_ptr<DeviceExecutor> open_executor(std::span<const Engine* const> ranks, OpenOptions options) {
  const TargetKind kind = ranks.front()->manifest().target.kind;
  const auto found = std::ranges::find(kBackends, kind, &Backend::kind);
  if (found == std::end(kBackends)) {
    throw EngineError("target: expected a kind of device that this build runs engines on, found " +
                      std::string(to_string(kind)));
  }
  return found->open(ranks, std::move(options));
}

}  // namespace tl
