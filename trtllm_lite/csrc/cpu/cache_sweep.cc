#include "cpu/cache_sweep.h"

namespace tl {

CacheSweep::CacheSweep(std::size_t bytes) : words_(bytes / sizeof(std::uint64_t), 1) {}

void CacheSweep::read(ThreadPool* pool) {
  const auto shares = static_cast<std::size_t>(pool->num_threads());
  pool->parallel_for(pool->num_threads(), [&](std::int64_t share, int) {
    constexpr std::size_t kChains = 8;
    std::uint64_t sums[kChains] = {};
    const std::size_t size = words_.size() / shares / kChains * kChains;
    const std::uint64_t* words = words_.data() + static_cast<std::size_t>(share) * size;
    for (std::size_t i = 0; i < size; i += kChains) {
      for (std::size_t chain = 0; chain < kChains; ++chain) sums[chain] += words[i + chain];
    }
    for (const std::uint64_t sum : sums) sum_.fetch_add(sum, std::memory_order_relaxed);
  });
}

}  // namespace tl
