#include "grammar/bounded_stack.h"

#include <pthread.h>

#include <exception>
#include <string>

#include "errors.h"

namespace tl {
namespace {

struct Job {
  const std::function<void()>& work;
  std::exception_ptr error;
};

void* run(void* argument) {
  auto& job = *static_cast<Job*>(argument);
  try {
    job.work();
  } catch (...) {
    job.error = std::current_exception();
  }
  return nullptr;
}

}  // namespace

void run_on_stack(std::size_t stack_bytes, const std::function<void()>& work) {
  Job job{work, nullptr};
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
  pthread_join(thread, nullptr);
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace tl
