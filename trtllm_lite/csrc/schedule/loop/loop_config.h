// What an event loop is made for.
#pragma once

#include <functional>
#include <memory>

#include "executor/step.h"
#include "schedule/planner.h"
#include "schedule/request.h"

namespace tl {

// Each kind of model has its own derived config.
struct EventLoopConfig {
  using Check = std::function<void(const RequestSpec&)>;

  virtual ~EventLoopConfig() = default;

  // Returns the planner of steps for the executor, which it borrows. Throws std::invalid_argument for a contradictory
  // config.
  virtual std::unique_ptr<Planner> make_planner(StepExecutor& executor) const = 0;
  // Returns a function that throws LimitError for requests beyond a limit. Any thread may call it. Throws
  // std::invalid_argument for a contradictory config.
  virtual Check make_check() const = 0;
  // The most requests that one step can start.
  virtual int max_requests_of_step() const = 0;

  int max_requests = 4096;  // the most outstanding requests; see Inbox
  // Tells the time, from any thread. (Tests have clocks of their own.)
  std::function<Clock::time_point()> clock = Clock::now;

 protected:
  EventLoopConfig() = default;
  EventLoopConfig(const EventLoopConfig&) = default;
  EventLoopConfig& operator=(const EventLoopConfig&) = default;
};

}  // namespace tl
