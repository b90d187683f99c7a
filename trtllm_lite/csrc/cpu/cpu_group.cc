#include "cpu/cpu_group.h"

#include <algorithm>

#include "host/cpu_count.h"

namespace tl {

CpuGroup::CpuGroup(std::span<const Engine* const> engines, std::int64_t num_threads, std::int64_t num_blocks,
                   std::unique_ptr<RankRendezvous> rendezvous)
    : ranks_(std::make_shared<Ranks>()) {
  ranks_->rendezvous = std::move(rendezvous);
  const std::int64_t threads_each = std::max<std::int64_t>(resolve_num_threads(num_threads) / std::ssize(engines), 1);
  for (const Engine* engine : engines) {
    ranks_->executors.push_back(
        std::make_unique<CpuExecutor>(*engine, threads_each, num_blocks, "auto", nullptr, ranks_->rendezvous.get()));
  }
  for (std::size_t rank = 0; rank < engines.size(); ++rank) threads_.emplace_back(work, ranks_, rank);
}

CpuGroup::~CpuGroup() {
  {
    const std::lock_guard lock(ranks_->mutex);
    ranks_->stopping = true;
  }
  ranks_->changed.notify_all();
  const bool gave_up = ranks_->rendezvous->gave_up();
  for (std::thread& thread : threads_) {
    if (home_.is_this() && !gave_up) {
      thread.join();
    } else {
      thread.detach();
    }
  }
}

void CpuGroup::work(const std::shared_ptr<Ranks>& ranks, std::size_t rank) {
  for (std::uint64_t done = 0;; ++done) {
    std::unique_lock lock(ranks->mutex);
    ranks->changed.wait(lock, [&] { return ranks->stopping || ranks->num_steps > done; });
    if (ranks->stopping) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      const LogitsUse unused = [](std::span<const float>, ThreadPool&) {};
      ranks->executors[rank]->step(ranks->request, rank == 0 ? *ranks->use : unused);
    } catch (...) {  // supervise() rethrows it
      error = std::current_exception();
    }
    ranks->rendezvous->end(static_cast<int>(rank), error);
  }
}

void CpuGroup::compute(const StepRequest& request, const LogitsUse& use) {
  ranks_->rendezvous->begin();
  {
    const std::lock_guard lock(ranks_->mutex);
    ranks_->request = request;
    ranks_->use = &use;
    ++ranks_->num_steps;
  }
  ranks_->changed.notify_all();
  ranks_->rendezvous->supervise();
}

std::size_t CpuGroup::block_bytes() const {
  std::size_t bytes = 0;
  for (const auto& executor : ranks_->executors) bytes += executor->block_bytes();
  return bytes;
}

void CpuGroup::copy_block(std::int64_t src, std::int64_t dst) {
  for (const auto& executor : ranks_->executors) executor->copy_block(src, dst);
}

void CpuGroup::save_block(std::int64_t block, std::span<std::byte> out) {
  for (const auto& executor : ranks_->executors) {
    executor->save_block(block, out.first(executor->block_bytes()));
    out = out.subspan(executor->block_bytes());
  }
}

void CpuGroup::load_block(std::int64_t block, std::span<const std::byte> data) {
  for (const auto& executor : ranks_->executors) {
    executor->load_block(block, data.first(executor->block_bytes()));
    data = data.subspan(executor->block_bytes());
  }
}

std::vector<ExpertCounts> CpuGroup::expert_counts() {
  std::vector<std::vector<ExpertCounts>> ranks;
  for (const auto& executor : ranks_->executors) ranks.push_back(executor->expert_counts());
  return counts_of_ranks(ranks, moe_tp_size(engine()));
}

MemoryUse CpuGroup::memory() const {
  MemoryUse all;
  for (const auto& executor : ranks_->executors) {
    const MemoryUse own = executor->memory();
    all.weights += own.weights;
    all.kv_cache += own.kv_cache;
    all.workspace += own.workspace;
  }
  return all;
}

}  // namespace tl
