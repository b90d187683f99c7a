// The decode path allocates nothing once its buffers have grown, and takes little time on the host.
#include <atomic>
#include <cstdlib>

#include "check.h"
#include "null_executor.h"
#include "schedule/scheduler.h"

// The sanitizers' allocator calls these functions at each allocation and each release.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void*, std::size_t),
                                                         void (*released)(const volatile void*));

namespace {

std::atomic<long> num_allocations{0};

constexpr int kRunning = 256;
constexpr int kGenerated = 1200;

struct Decoding {
  Decoding() {
    for (int i = 0; i < kRunning; ++i) {
      tl::RequestSpec spec;
      spec.prompt.assign(16 + i % 7, i);
      spec.max_new_tokens = kGenerated;
      spec.end_ids = {2};
      scheduler.add(std::make_unique<tl::Request>(i + 1, std::move(spec), now));
    }
    for (int i = 0; i < 80; ++i) step();
    CHECK(scheduler.stats().num_running == kRunning);
  }

  void step() {
    CHECK(scheduler.prepare(batch, now, events));
    scheduler.launched(batch);
    executor.launch(batch);
    executor.wait(result);
    scheduler.complete(batch, result, now, events);
    events.clear();
  }

  tl::NullExecutor executor{kRunning};
  tl::Scheduler scheduler{{.max_batch_size = kRunning, .max_num_tokens = 4096, .max_seq_len = 1400},
                          {.num_blocks = kRunning * 44},
                          executor};
  tl::Clock::time_point now{};
  tl::StepBatch batch;
  tl::StepResult result;
  tl::EventBatch events;
};

// The 1000 steps cross every block boundary many times. Only the queues of the executor and the pools still allocate.
TEST(decoding_allocates_nothing) {
  CHECK(__sanitizer_install_malloc_and_free_hooks([](const volatile void*, std::size_t) { ++num_allocations; },
                                                  [](const volatile void*) {}) > 0);
  Decoding decoding;
  CHECK(num_allocations > kRunning);  // allocations are counted
  const long before = num_allocations;
  for (int i = 0; i < 1000; ++i) decoding.step();
  CHECK(num_allocations - before <= 1000 / 64 + 1);  // the null executor's deque: a chunk per 64 steps
}

}  // namespace
