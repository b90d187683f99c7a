#include "host/thread_pool.h"

#include <chrono>
#include <new>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace tl {
namespace {

// How long a thread spins: longer than the serial gap between two regions of a step, shorter than a time slice.
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

constexpr std::uint64_t pack(std::uint64_t first, std::uint64_t last) { return first | last << 32; }
constexpr std::uint64_t first_of(std::uint64_t bounds) { return bounds & 0xffffffffu; }
constexpr std::uint64_t last_of(std::uint64_t bounds) { return bounds >> 32; }
constexpr bool is_empty(std::uint64_t bounds) { return first_of(bounds) >= last_of(bounds); }

// Claims the first or the last task; -1 if none is left. Acquires what was written before the run was published.
std::int64_t claim(std::atomic<std::uint64_t>* bounds, bool from_front) {
  std::uint64_t found = bounds->load(std::memory_order_relaxed);
  while (!is_empty(found)) {
    const std::uint64_t first = first_of(found), last = last_of(found);
    const std::uint64_t rest = from_front ? pack(first + 1, last) : pack(first, last - 1);
    if (bounds->compare_exchange_weak(found, rest, std::memory_order_acquire, std::memory_order_relaxed)) {
      return static_cast<std::int64_t>(from_front ? first : last - 1);
    }
  }
  return -1;
}

}  // namespace

void ThreadPool::FreeScratch::operator()(std::byte* memory) const { ::operator delete(memory, kScratchAlignment); }

ThreadPool::ThreadPool(int num_threads)
    : runs_(static_cast<std::size_t>(num_threads)),
      shared_scratch_(static_cast<std::byte*>(::operator new(kSharedScratchBytes, kScratchAlignment))) {
  for (int thread = 0; thread < num_threads; ++thread) {
    // The scratch memory is not touched here, so that its pages are allocated on the memory node of the thread that
    // first uses them.
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

void* ThreadPool::shared_scratch() const { return shared_scratch_.get(); }

void ThreadPool::run(std::int64_t num_tasks, TaskRef task) {
  if (num_tasks <= 1 || workers_.empty()) return run_serially(num_tasks, task);
  task_ = task;
  finished_.store(0, std::memory_order_relaxed);
  publish(num_tasks);
  // This load and sleep_until_work are sequentially consistent: either that function sees the tasks, or this load sees
  // the sleeper.
  if (num_sleeping_.load() > 0) {
    wake_epoch_.fetch_add(1);
    wake_epoch_.notify_all();
  }
  work(0);
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

void ThreadPool::publish(std::int64_t num_tasks) {
  const auto tasks = static_cast<std::uint64_t>(num_tasks), threads = static_cast<std::uint64_t>(runs_.size());
  for (std::uint64_t i = 0; i < threads; ++i) {
    runs_[i].bounds.store(pack(tasks * i / threads, tasks * (i + 1) / threads));
  }
}

// Runs the tasks left in the owner's run; returns their number.
std::int64_t ThreadPool::drain(int thread, int owner) {
  std::int64_t finished = 0;
  std::int64_t task;
  while ((task = claim(&runs_[static_cast<std::size_t>(owner)].bounds, thread == owner)) >= 0) {
    try {
      task_.invoke(task_.callable, task, thread);
    } catch (...) {
      record_exception();
      finished += cancel();
    }
    ++finished;
  }
  return finished;
}

void ThreadPool::work(int thread) {
  const int threads = num_threads();
  std::int64_t finished = 0;
  for (int i = 0; i < threads; ++i) finished += drain(thread, (thread + i) % threads);
  if (finished > 0) finished_.fetch_add(finished, std::memory_order_release);
}

void ThreadPool::record_exception() {
  if (!has_exception_.exchange(true, std::memory_order_acq_rel)) exception_ = std::current_exception();
}

// Claims all tasks that are left, so that the region can end; returns their number.
std::int64_t ThreadPool::cancel() {
  std::int64_t cancelled = 0;
  for (Run& run : runs_) {
    const std::uint64_t bounds = run.bounds.exchange(0, std::memory_order_relaxed);
    if (!is_empty(bounds)) cancelled += static_cast<std::int64_t>(last_of(bounds) - first_of(bounds));
  }
  return cancelled;
}

void ThreadPool::worker_loop(int thread) {
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (spin_until([this, thread] { return has_work(thread); })) {
      work(thread);
    } else {
      sleep_until_work(thread);
    }
  }
}

bool ThreadPool::has_work(int thread) const { return !is_empty(runs_[static_cast<std::size_t>(thread)].bounds.load()); }

void ThreadPool::sleep_until_work(int thread) {
  const std::uint32_t epoch = wake_epoch_.load();
  num_sleeping_.fetch_add(1);
  if (!has_work(thread) && !stopping_.load()) wake_epoch_.wait(epoch);
  num_sleeping_.fetch_sub(1);
}

void ThreadPool::wait_until_finished(std::int64_t num_tasks) const {
  const auto finished = [this, num_tasks] { return finished_.load(std::memory_order_acquire) == num_tasks; };
  // If a task is unfinished after the spin, it is long, or its thread is off the core, so this thread yields.
  while (!spin_until(finished)) std::this_thread::yield();
}

}  // namespace tl
