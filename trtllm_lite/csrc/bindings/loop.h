// What the event loops of decoders and encoders have in common for Python.
#pragma once

#include <cstdint>

#include "host/home_process.h"
#include "schedule/loop/event_loop.h"

namespace tl {

// A number of seconds from Python as a duration of the clock: 0 to some years.
Clock::duration duration_of(double seconds);

// Throws LimitError for a limit of a loop that is not within what its engine allows, `low` to `high`.
void check_limit(const char* name, std::int64_t value, std::int64_t low, std::int64_t high);

class PyLoop {
 public:
  // The thread of a loop over a Python network needs the GIL to end.
  ~PyLoop();
  PyLoop(const PyLoop&) = delete;
  PyLoop& operator=(const PyLoop&) = delete;

  // In a forked child process there is nothing to cancel: the requests belong to the parent.
  bool cancel(RequestId id) { return home().is_this() && loop_->cancel(id); }
  void hold();
  void release();
  LoopStats stats() const;
  StepLog& step_log() { return loop_->step_log(); }
  bool device_failed() const { return loop_->device_failed(); }
  void shut_down(bool drain);

 protected:
  // `make` returns a new EventLoop.
  template <typename Make>
  explicit PyLoop(const Make& make) : loop_(make()) {}

  const HomeProcess& home() const { return loop_.get_deleter().home; }
  EventLoop& loop() { return *loop_; }
  // Waits for events without the GIL.
  PollStatus poll_into(EventBatch& batch, double timeout);

 private:
  HomeBound<EventLoop> loop_;
};

}  // namespace tl
