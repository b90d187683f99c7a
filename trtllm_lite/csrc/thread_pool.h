// A fork-join pool for the parallel regions of a step: about 200 a token, so a region must cost microseconds.
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

// Every non-template member is defined in thread_pool.cc: kernels include this header with wider instruction sets
// enabled, and an inline definition compiled there could be the one the linker keeps for every machine.
class ThreadPool {
 public:
  // Starts num_threads - 1 workers; the thread that calls parallel_for is the remaining one. num_threads >= 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // kScratchBytesPerThread bytes, 64-byte aligned, owned by `thread` (0 .. num_threads-1) and kept between regions.
  void* scratch(int thread) const;

  // Calls fn(task, thread) once for each task in [0, num_tasks) and returns when all calls have. Tasks are handed out
  // in increasing order. The first exception cancels tasks not yet started and is rethrown here. One caller at a time;
  // fn must not call parallel_for.
  template <typename Fn>
  void parallel_for(std::int64_t num_tasks, Fn&& fn) {
    using Callable = std::remove_reference_t<Fn>;
    run(num_tasks,
        {const_cast<void*>(static_cast<const void*>(&fn)),
         [](void* callable, std::int64_t task, int thread) { (*static_cast<Callable*>(callable))(task, thread); }});
  }

 private:
  // A borrowed callable; it outlives the region because parallel_for waits, so nothing is allocated.
  struct TaskRef {
    void* callable = nullptr;
    void (*invoke)(void* callable, std::int64_t task, int thread) = nullptr;
  };
  struct FreeScratch {
    void operator()(std::byte* memory) const;
  };

  void run(std::int64_t num_tasks, TaskRef task);
  void run_serially(std::int64_t num_tasks, TaskRef task);
  void drain(int thread);
  void record_exception();
  void worker_loop(int thread);
  bool spin_for_work() const;
  void sleep_until_work();
  void wait_until_finished(std::int64_t num_tasks) const;

  // Tasks of the current region not handed out yet; 0 or less between regions. Claiming one is a decrement that
  // returns a positive value, so a worker that wakes late can never claim a task of a region that is over.
  alignas(64) std::atomic<std::int64_t> unclaimed_{0};
  alignas(64) std::atomic<std::int64_t> finished_{0};
  alignas(64) std::atomic<std::uint32_t> wake_epoch_{0};
  std::atomic<int> num_sleeping_{0};
  std::atomic<bool> stopping_{false};

  // Written before unclaimed_ is published and stable while any claimed task is unfinished.
  alignas(64) TaskRef task_;
  std::int64_t num_tasks_ = 0;

  std::atomic<bool> has_exception_{false};
  std::exception_ptr exception_;
  std::vector<std::unique_ptr<std::byte, FreeScratch>> scratch_;
  std::vector<std::thread> workers_;
};

}  // namespace tl
