#include "grammar/bounded_stack.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <semaphore>
#include <string>

#include "errors.h"
#include "host/niceness.h"

namespace tl {
namespace {

// Next to a thread that computes a step, the work gets a seventh of a core at first, and a fiftieth after it has taken
// longer than a usual schema does (3 ms). With less, it would not end in time on a busy machine.
constexpr int kNice = 8;
constexpr int kNicer = 17;
constexpr std::chrono::milliseconds kQuick{5};

struct Job {
  const std::function<void()>& work;
  std::exception_ptr error;
  int thread_id = 0;
  std::binary_semaphore started{0};
  std::binary_semaphore ended{0};
};

void* run(void* argument) {
  auto& job = *static_cast<Job*>(argument);
  job.thread_id = own_thread_id();
  make_nicer(job.thread_id, kNice);
  job.started.release();
  try {
    job.work();
  } catch (...) {
    job.error = std::current_exception();
  }
  job.ended.release();
  return nullptr;
}

}  // namespace

void run_on_stack(std::size_t stack_bytes, const std::function<void()>& work) {
  Job job{work};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  pthread_t thread;
  const int status = pthread_create(&thread, &attributes, run, &job);
  pthread_attr_destroy(&attributes);
  if (status != 0) {
    throw DeviceError("expected to start a thread with a stack of " + std::to_string(stack_bytes >> 10) +
                      " KiB, found that the system starts none (error " + std::to_string(status) +
                      "); allow more threads or memory");
  }
  job.started.acquire();
  if (!job.ended.try_acquire_for(kQuick)) make_nicer(job.thread_id, kNicer);
  pthread_join(thread, nullptr);
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace tl
