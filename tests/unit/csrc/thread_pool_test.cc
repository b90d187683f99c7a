// Exercises ThreadPool under ThreadSanitizer; exits with 1 and a line on stderr at the first broken promise.
#include "host/thread_pool.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "expected: %s\n", what);
  std::exit(1);
}

void every_task_runs_once(tl::ThreadPool* pool, int num_rounds) {
  for (const int num_tasks : {0, 1, 2, 3, 64, 1000}) {
    for (int round = 0; round < num_rounds; ++round) {
      std::vector<int> runs(static_cast<std::size_t>(num_tasks));
      pool->parallel_for(num_tasks, [&](std::int64_t task, int thread) {
        expect(thread >= 0 && thread < pool->num_threads(), "a thread number below num_threads");
        ++runs[static_cast<std::size_t>(task)];
      });
      for (const int count : runs) expect(count == 1, "every task to run once");
    }
  }
}

void workers_wake_after_sleep(tl::ThreadPool* pool) {
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(20 * round));
    every_task_runs_once(pool, 5);
  }
}

void exceptions_reach_the_caller(tl::ThreadPool* pool) {
  for (int round = 0; round < 100; ++round) {
    bool caught = false;
    try {
      pool->parallel_for(100, [](std::int64_t task, int) {
        if (task % 7 == 3) throw std::runtime_error("task failed");
      });
    } catch (const std::runtime_error& error) {
      caught = std::strcmp(error.what(), "task failed") == 0;
    }
    expect(caught, "the exception of a task");
    every_task_runs_once(pool, 1);
  }
}

void scratch_belongs_to_its_thread(tl::ThreadPool* pool) {
  pool->parallel_for(1000, [&](std::int64_t, int thread) {
    expect(reinterpret_cast<std::uintptr_t>(pool->scratch(thread)) % 64 == 0, "scratch aligned to 64 bytes");
    std::memset(pool->scratch(thread), thread, tl::kScratchBytesPerThread);
  });
}

}  // namespace

int main() {
  for (const int num_threads : {1, 2, 5}) {
    tl::ThreadPool pool(num_threads);
    every_task_runs_once(&pool, 50);
    workers_wake_after_sleep(&pool);
    exceptions_reach_the_caller(&pool);
    scratch_belongs_to_its_thread(&pool);
  }
  for (int round = 0; round < 50; ++round) tl::ThreadPool idle(4);  // destroyed before, while or after workers sleep
  return 0;
}
