#include "backends.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>
#include <utility>

#include "cpu/cpu_executor.h"
#include "cpu/cpu_group.h"
#include "cpu/cpu_pipeline.h"
#include "cuda/cuda_executor.h"
#include "cuda/ranks/cuda_group.h"
#include "errors.h"
#include "host/cpu_count.h"
#include "network/network_executor.h"
#include "ranks/check_ranks.h"
#include "ranks/place.h"

namespace tl {
namespace {

struct Backend {
  TargetKind kind;
  std::unique_ptr<DeviceExecutor> (*open)(std::span<const Engine* const> ranks, OpenOptions options);
};

std::chrono::nanoseconds timeout_of(const OpenOptions& options) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(options.rank_timeout));
}

// The executor whose features a draft engine reads: that of rank 0, as all ranks keep the same.
const CpuExecutor* keeper_of_features(const DeviceExecutor* executor) {
  if (const auto* group = dynamic_cast<const CpuGroup*>(executor)) return &group->first();
  return dynamic_cast<const CpuExecutor*>(executor);
}

std::unique_ptr<LogitsExecutor> open_cpu_stage(std::span<const Engine* const> ranks, const OpenOptions& options) {
  if (ranks.size() > 1) {
    auto rendezvous = std::make_unique<RankRendezvous>(static_cast<int>(ranks.size()), timeout_of(options));
    return std::make_unique<CpuGroup>(ranks, options.num_threads, options.num_blocks, std::move(rendezvous));
  }
  const Engine& engine = *ranks.front();
  return std::make_unique<CpuExecutor>(engine, options.num_threads, options.num_blocks, "auto",
                                       keeper_of_features(options.features_of));
}

std::unique_ptr<DeviceExecutor> open_cpu(std::span<const Engine* const> ranks, OpenOptions options) {
  const std::size_t tp_size = static_cast<std::size_t>(ranks.front()->manifest().mapping.tp_size);
  if (ranks.size() == tp_size) return open_cpu_stage(ranks, options);
  const std::size_t pp_size = ranks.size() / tp_size;
  options.num_threads =
      std::max(resolve_num_threads(options.num_threads) / static_cast<std::int64_t>(pp_size), std::int64_t{1});
  std::vector<std::unique_ptr<LogitsExecutor>> stages;
  for (std::size_t stage = 0; stage < pp_size; ++stage) {
    stages.push_back(open_cpu_stage(ranks.subspan(stage * tp_size, tp_size), options));
  }
  return std::make_unique<CpuPipeline>(std::move(stages));
}

std::vector<int> devices_of(std::vector<int> given, std::size_t num_ranks) {
  if (given.empty()) {
    for (std::size_t rank = 0; rank < num_ranks; ++rank) given.push_back(static_cast<int>(rank));
  }
  const std::set<int> different(given.begin(), given.end());
  if (given.size() == num_ranks && different.size() == num_ranks) return given;
  throw ArgumentError("device_ids: expected " + std::to_string(num_ranks) +
                      " different GPUs, one for each rank of the engine, found " + std::to_string(given.size()) + ", " +
                      std::to_string(different.size()) + " of them different");
}

std::unique_ptr<DeviceExecutor> open_cuda(std::span<const Engine* const> ranks, OpenOptions options) {
  if (std::cmp_not_equal(ranks.size(), num_ranks(ranks.front()->manifest().mapping))) {
    throw DeviceError(
        "only the last of the stages on GPUs has an executor of its own: load all ranks of the engine together, or "
        "its stages with distributed_executor_backend");
  }
  const std::vector<int> devices = devices_of(std::move(options.devices), ranks.size());
  if (ranks.size() > 1) {
    return std::make_unique<cuda::CudaGroup>(ranks, devices, options.num_blocks, options.library_directories,
                                             timeout_of(options));
  }
  const auto* features_of = dynamic_cast<const cuda::CudaExecutor*>(options.features_of);
  return std::make_unique<cuda::CudaExecutor>(*ranks.front(), devices.front(), options.num_blocks,
                                              options.library_directories, features_of, options.num_loras,
                                              options.adapter_bytes);
}

std::unique_ptr<DeviceExecutor> open_network(std::span<const Engine* const> ranks, OpenOptions options) {
  const Engine& engine = *ranks.front();
  if (options.network == nullptr) throw ArgumentError("network: expected one for this engine's network, found none");
  return std::make_unique<NetworkExecutor>(engine, options.num_blocks, std::move(options.network));
}

constexpr Backend kBackends[] = {
    {TargetKind::kCpu, open_cpu}, {TargetKind::kCuda, open_cuda}, {TargetKind::kTensorrt, open_network}};

std::unique_ptr<DeviceExecutor> open(std::span<const Engine* const> ranks, OpenOptions options) {
  const TargetKind kind = ranks.front()->manifest().target.kind;
  const auto found = std::ranges::find(kBackends, kind, &Backend::kind);
  if (found == std::end(kBackends)) {
    throw EngineError("target: expected a kind of device that this build runs engines on, found " +
                      std::string(to_string(kind)));
  }
  return found->open(ranks, std::move(options));
}

}  // namespace

std::unique_ptr<DeviceExecutor> open_executor(std::span<const Engine* const> ranks, OpenOptions options) {
  check_ranks(ranks);
  return open(ranks, std::move(options));
}

std::unique_ptr<DeviceExecutor> open_stage(std::span<const Engine* const> ranks, OpenOptions options) {
  check_stage(ranks);
  return open(ranks, std::move(options));
}

}  // namespace tl
