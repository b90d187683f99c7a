#include "cpu/read_rate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "host/anonymous_memory.h"
#include "host/thread_pool.h"

namespace tl {
namespace {

constexpr std::size_t kLineWords = 8;
constexpr std::size_t kStripeWords = 64 * 1024 / sizeof(std::uint64_t);
constexpr std::size_t kAheadWords = 8 * 1024 / sizeof(std::uint64_t);

// Reads a line of each of kStreams equal parts in turn. Words beyond whole lines of the parts are left out.
template <bool kPrefetch, std::size_t kStreams>
std::uint64_t sum_lines(const std::uint64_t* words, std::size_t count) {
  std::uint64_t sums[kLineWords] = {};
  const std::size_t part = count / kStreams / kLineWords * kLineWords;
  for (std::size_t i = 0; i < part; i += kLineWords) {
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      const std::uint64_t* line = words + stream * part + i;
      if constexpr (kPrefetch) __builtin_prefetch(line + kAheadWords / kStreams);
      for (std::size_t chain = 0; chain < kLineWords; ++chain) sums[chain] += line[chain];
    }
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t chain : sums) sum += chain;
  return sum;
}

// Threads take stripes of `stripe` words in turn.
template <bool kPrefetch, std::size_t kStreams>
std::uint64_t read_stripes(const std::uint64_t* words, std::size_t count, std::size_t stripe, ThreadPool* pool) {
  std::atomic<std::uint64_t> total{0};  // keeps the compiler from dropping the reads
  const auto threads = static_cast<std::size_t>(pool->num_threads());
  pool->parallel_for(pool->num_threads(), [&](std::int64_t share, int) {
    std::uint64_t sum = 0;
    for (std::size_t first = static_cast<std::size_t>(share) * stripe; first < count; first += threads * stripe) {
      sum += sum_lines<kPrefetch, kStreams>(words + first, std::min(stripe, count - first));
    }
    total.fetch_add(sum, std::memory_order_relaxed);
  });
  return total;
}

}  // namespace

double best_read_rate(std::size_t bytes, int num_threads, int passes) {
  AnonymousMemory memory(bytes, AnonymousMemory::Pages::kHuge, "probe of the bandwidth", "probe fewer bytes");
  std::memset(memory.data(), 1, bytes);
  ThreadPool pool(num_threads);
  const auto* words = reinterpret_cast<const std::uint64_t*>(memory.data());
  const std::size_t count = bytes / sizeof(std::uint64_t);
  const std::size_t run = (count / static_cast<std::size_t>(num_threads) / kLineWords + 1) * kLineWords;
  // Some processors read one stream best, others several.
  const auto kPatterns = {read_stripes<false, 1>, read_stripes<true, 1>, read_stripes<false, 4>, read_stripes<true, 4>};
  double best = 0;
  for (const std::size_t stripe : {run, kStripeWords}) {
    for (const auto read : kPatterns) {
      for (int pass = 0; pass < passes; ++pass) {
        const auto begin = std::chrono::steady_clock::now();
        read(words, count, stripe, &pool);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        best = std::max(best, static_cast<double>(bytes) / seconds.count());
      }
    }
  }
  return best;
}

}  // namespace tl
