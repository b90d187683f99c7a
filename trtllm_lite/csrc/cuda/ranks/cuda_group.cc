#include "cuda/ranks/cuda_group.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cuda/step/cuda_step_executor.h"
#include "ranks/place.h"

namespace tl::cuda {
namespace {

const RankMapping& mapping_of(const CudaExecutor& rank) { return rank.engine().manifest().mapping; }

bool draws(const RankMapping& rank) { return is_last_stage(rank) && part_of(rank) == 0; }

// Whether `rank` reads or writes the memory of `other`: another rank of its stage, the rank of the next stage that it
// sends rows to, or the rank whose tokens it reads.
bool reaches(const RankMapping& rank, const RankMapping& other) {
  return stage_of(rank) == stage_of(other) || other.rank == rank.rank + rank.tp_size || draws(other);
}

}  // namespace

CudaGroup::CudaGroup(std::span<const Engine* const> engines, std::span<const int> devices, std::int64_t num_blocks,
                     const std::vector<std::string>& library_directories, std::chrono::nanoseconds timeout) {
  for (std::size_t rank = 0; rank < engines.size(); ++rank) {
    ranks_.push_back(std::make_unique<CudaExecutor>(*engines[rank], devices[rank], num_blocks, library_directories));
  }
  const bool by_nccl = engines.front()->manifest().allreduce_strategy == AllreduceStrategy::kNccl;
  by_nccl ? connect(nccl(library_directories), timeout) : reach_each_other();
  std::vector<const Plan*> plans(static_cast<std::size_t>(num_ranks(mapping_of(*ranks_.front()))));
  for (const auto& rank : ranks_) plans[static_cast<std::size_t>(mapping_of(*rank).rank)] = &rank->plan();
  watchdog_ = std::make_unique<RankWatchdog>(std::move(plans), timeout);
  for (const auto& rank : ranks_) {
    rank->set_ranks(peers_of(*rank), *watchdog_);
    watchdog_->watch(rank->device(), rank->rank_table());
  }
}

// Captured graphs use the communicators, so the graphs are destroyed first.
CudaGroup::~CudaGroup() {
  for (const auto& rank : ranks_) {
    static_cast<void>(rank->device().try_make_current());
    rank->drop_graphs();
  }
}

void CudaGroup::reach_each_other() const {
  for (const auto& rank : ranks_) {
    for (const auto& other : ranks_) {
      if (rank != other && reaches(mapping_of(*rank), mapping_of(*other))) {
        rank->device().enable_access_to(other->device());
        other->open_cache_to(*rank);
      }
    }
  }
}

void CudaGroup::connect(const Nccl& library, std::chrono::nanoseconds timeout) {
  std::vector<const Device*> devices;
  for (const auto& rank : ranks_) devices.push_back(&rank->device());
  communicators_ = std::make_unique<RankCommunicators>(library, devices, timeout);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank]->programs().set_communicator(library, communicators_->of(rank));
  }
}

CudaExecutor& CudaGroup::drawing() const {
  return *ranks_[ranks_.size() - static_cast<std::size_t>(mapping_of(*ranks_.front()).tp_size)];
}

// If the memory of the rank that draws tokens is out of reach, its tokens are copied to this rank's own state.
RankPeers CudaGroup::peers_of(const CudaExecutor& rank) const {
  const RankMapping& mapping = mapping_of(rank);
  const bool by_nccl = communicators_ != nullptr, is_drawn_here = is_last_stage(mapping_of(drawing()));
  RankPeers peers{.stage = {}, .drawing = (by_nccl || !is_drawn_here ? rank : drawing()).rank_memory().state};
  const auto first = static_cast<std::size_t>(mapping.rank - part_of(mapping) - mapping_of(*ranks_.front()).rank);
  for (std::size_t part = 0; part < static_cast<std::size_t>(mapping.tp_size); ++part) {
    const CudaExecutor& other = *ranks_[first + part];
    peers.stage.push_back(by_nccl && &other != &rank ? RankMemory() : other.rank_memory());
  }
  return peers;
}

std::vector<CudaExecutor*> CudaGroup::ranks() const {
  std::vector<CudaExecutor*> ranks;
  for (const auto& rank : ranks_) ranks.push_back(rank.get());
  return ranks;
}

std::vector<ExpertCounts> CudaGroup::expert_counts() {
  const auto of_stage = static_cast<std::size_t>(mapping_of(*ranks_.front()).tp_size);
  std::vector<ExpertCounts> all;
  for (std::size_t first = 0; first < ranks_.size(); first += of_stage) {
    std::vector<std::vector<ExpertCounts>> ranks;
    for (std::size_t part = 0; part < of_stage; ++part) ranks.push_back(ranks_[first + part]->expert_counts());
    std::ranges::move(counts_of_ranks(ranks, moe_tp_size(engine())), std::back_inserter(all));
  }
  return all;
}

MemoryUse CudaGroup::memory() const {
  MemoryUse all;
  for (const auto& rank : ranks_) {
    const MemoryUse own = rank->memory();
    all.weights += own.weights;
    all.kv_cache += own.kv_cache;
    all.workspace += own.workspace;
  }
  return all;
}

std::unique_ptr<StepExecutor> CudaGroup::make_decoder_steps(std::int64_t num_host_blocks, int max_batch_size) {
  auto steps = std::make_unique<CudaStepExecutor>(ranks(), num_host_blocks, watchdog_.get(), communicators_.get());
  steps->capture_decode_steps(max_batch_size);
  return steps;
}

}  // namespace tl::cuda
