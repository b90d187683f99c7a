// Reads a large block of memory to evict everything else from the caches, so that benchmarks time kernels on operands
// in memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "host/thread_pool.h"

namespace tl {

class CacheSweep {
 public:
  explicit CacheSweep(std::size_t bytes);

  // Each thread of the pool reads its share once.
  void read(ThreadPool* pool);

 private:
  std::vector<std::uint64_t> words_;
  std::atomic<std::uint64_t> sum_{0};  // keeps the compiler from dropping the reads
};

}  // namespace tl
