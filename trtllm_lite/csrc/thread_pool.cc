#include "thread_pool.h"

#include <chrono>
#include <new>

#include "kernel.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace tl {
namespace {

// Longer than the serial gap between two regions of a step, shorter than a scheduler's time slice.
constexpr std::chrono::microseconds kSpinTime{50};
constexpr int kPausesPerClockRead = 32;
constexpr std::align_val_t kScratchAlignment{64};

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#endif
}

// Spins until `done()` or until kSpinTime has passed; returns the last value of `done()`.
template <typename Predicate>
bool spin_until(Predicate done) {
  if (done()) return true;
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

}  // namespace

void ThreadPool::FreeScratch::operator()(std::byte* memory) const { ::operator delete(memory, kScratchAlignment); }

ThreadPool::ThreadPool(int num_threads) {
  for (int thread = 0; thread < num_threads; ++thread) {
    // Left untouched here, so that the pages land on the memory node of the thread that uses them first.
    scratch_.emplace_back(static_cast<std::byte*>(::operator new(kScratchBytesPerThread, kScratchAlignment)));
  }
  for (int thread = 1; thread < num_threads; ++thread) workers_.emplace_back([this, thread] { worker_loop(thread); });
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  wake_epoch_.fetch_add(1);
  wake_epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

int ThreadPool::num_threads() const { return static_cast<int>(scratch_.size()); }

void* ThreadPool::scratch(int thread) const { return scratch_[static_cast<std::size_t>(thread)].get(); }

void ThreadPool::run(std::int64_t num_tasks, TaskRef task) {
  if (num_tasks <= 1 || workers_.empty()) return run_serially(num_tasks, task);
  task_ = task;
  num_tasks_ = num_tasks;
  finished_.store(0, std::memory_order_relaxed);
  unclaimed_.store(num_tasks);
  // Sequentially consistent with sleep_until_work: either it sees the tasks, or this load sees the sleeper.
  if (num_sleeping_.load() > 0) {
    wake_epoch_.fetch_add(1);
    wake_epoch_.notify_all();
  }
  drain(0);
  wait_until_finished(num_tasks);
  if (has_exception_.load(std::memory_order_acquire)) {
    std::exception_ptr exception = std::move(exception_);
    exception_ = nullptr;
    has_exception_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(exception);
  }
}

void ThreadPool::run_serially(std::int64_t num_tasks, TaskRef task) {
  for (std::int64_t i = 0; i < num_tasks; ++i) task.invoke(task.callable, i, 0);
}

void ThreadPool::drain(int thread) {
  std::int64_t finished = 0;
  while (unclaimed_.load(std::memory_order_relaxed) > 0) {
    const std::int64_t left = unclaimed_.fetch_sub(1, std::memory_order_acquire);
    if (left <= 0) break;
    try {
      task_.invoke(task_.callable, num_tasks_ - left, thread);
    } catch (...) {
      record_exception();
      // Claims every task that is left, so that the region still ends with all of them accounted for.
      const std::int64_t cancelled = unclaimed_.exchange(0, std::memory_order_relaxed);
      if (cancelled > 0) finished += cancelled;
    }
    ++finished;
  }
  if (finished > 0) finished_.fetch_add(finished, std::memory_order_release);
}

void ThreadPool::record_exception() {
  if (!has_exception_.exchange(true, std::memory_order_acq_rel)) exception_ = std::current_exception();
}

void ThreadPool::worker_loop(int thread) {
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (spin_for_work()) {
      drain(thread);
    } else {
      sleep_until_work();
    }
  }
}

bool ThreadPool::spin_for_work() const {
  return spin_until([this] { return unclaimed_.load(std::memory_order_relaxed) > 0; });
}

void ThreadPool::sleep_until_work() {
  const std::uint32_t epoch = wake_epoch_.load();
  num_sleeping_.fetch_add(1);
  if (unclaimed_.load() <= 0 && !stopping_.load()) wake_epoch_.wait(epoch);
  num_sleeping_.fetch_sub(1);
}

void ThreadPool::wait_until_finished(std::int64_t num_tasks) const {
  const auto finished = [this, num_tasks] { return finished_.load(std::memory_order_acquire) == num_tasks; };
  // A task still unfinished after the spin is long or its thread is off the core: offer it this one.
  while (!spin_until(finished)) std::this_thread::yield();
}

}  // namespace tl
