// A fork-join pool for the parallel regions of a step. A step has about 200 of them, so starting and
// ending a region must take only microseconds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace tl {

// Bytes of 64-byte-aligned scratch memory for each thread of the pool.
constexpr std::size_t kScratchBytesPerThread = 512 * 1024;

// Bytes of 64-byte-aligned scratch memory that the threads of a pool share.
constexpr std::size_t kSharedScratchBytes = 4 * 1024 * 1024;

// Every non-template member is defined in thread_pool.cc: kernels include this header with wider instruction sets
// enabled, and the linker might keep an inline definition compiled there for all machines.
class ThreadPool {
 public:
  // Starts num_threads - 1 workers; the thread that calls parallel_for is the remaining one. num_threads >= 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // The scratch memory of `thread` (0 .. num_threads-1): kScratchBytesPerThread bytes, 64-byte aligned, kept between
  // regions.
  void* scratch(int thread) const;
  // The shared scratch memory: kSharedScratchBytes bytes, 64-byte aligned. One region writes it and later ones read it.
  void* shared_scratch() const;

  // Calls fn(task, thread) once for each task in [0, num_tasks), num_tasks < 2^31, and returns when all calls have
  // returned. Every thread starts with a run of consecutive tasks in increasing order, so that neighbouring memory is
  // read by one core; a thread that has finished takes tasks from the ends of other runs. The first exception cancels
  // the tasks not yet started and is rethrown here. Only one caller at a time; fn must not call parallel_for.
  template <typename Fn>
  void parallel_for(std::int64_t num_tasks, Fn&& fn) {
    using Callable = std::remove_reference_t<Fn>;
    run(num_tasks,
        {const_cast<void*>(static_cast<const void*>(&fn)),
         [](void* callable, std::int64_t task, int thread) { (*static_cast<Callable*>(callable))(task, thread); }});
  }

 private:
  // A borrowed callable. It outlives the region because parallel_for waits, so nothing is allocated.
  struct TaskRef {
    void* callable = nullptr;
    void (*invoke)(void* callable, std::int64_t task, int thread) = nullptr;
  };
  struct FreeScratch {
    void operator()(std::byte* memory) const;
  };

  // The unclaimed tasks of one thread's run: first .. last-1, packed in one word so that the owner can take from the
  // front and others from the back. Empty between regions: a worker that wakes late finds nothing to claim.
  struct alignas(64) Run {
    std::atomic<std::uint64_t> bounds{0};
  };

  void run(std::int64_t num_tasks, TaskRef task);
  void run_serially(std::int64_t num_tasks, TaskRef task);
  void publish(std::int64_t num_tasks);
  std::int64_t drain(int thread, int owner);
  void work(int thread);
  void record_exception();
  std::int64_t cancel();
  void worker_loop(int thread);
  bool has_work(int thread) const;
  void sleep_until_work(int thread);
  void wait_until_finished(std::int64_t num_tasks) const;

  std::vector<Run> runs_;  // one per thread
  alignas(64) std::atomic<std::int64_t> finished_{0};
  alignas(64) std::atomic<std::uint32_t> wake_epoch_{0};
  std::atomic<int> num_sleeping_{0};
  std::atomic<bool> stopping_{false};

  // Written before runs are published, and unchanged while a claimed task is unfinished.
  alignas(64) TaskRef task_;

  std::atomic<bool> has_exception_{false};
  std::exception_ptr exception_;
  std::vector<std::unique_ptr<std::byte, FreeScratch>> scratch_;
  std::unique_ptr<std::byte, FreeScratch> shared_scratch_;
  std::vector<std::thread> workers_;
};

}  // namespace tl
