// The thread that owns scheduler, KV cache and executor, and keeps the device busy.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "batching/event_queue.h"
#include "batching/inbox.h"
#include "batching/loop_stats.h"
#include "batching/scheduler.h"
#include "batching/step.h"

namespace tl {

struct EventLoopConfig {
  SchedulerConfig scheduler;
  KvManagerConfig cache;
  int vocab_size = 0;
  int max_input_len = 0;
  int max_requests = 4096;  // outstanding ones; see Inbox
};

// Step n+1 is prepared and launched while step n is in flight, and only then are the results of n looked at, unless n
// is awaited. So that a request ended by what it generated is found out one step late; the row it left in step n+1 is
// discarded. (A GPU knows stop tokens by itself and spares such a row its attention: plugins/sample/slot.cuh.) Where
// steps pass through stages, as many more are in flight, each of other requests, and n+1 stands for the next step of
// the requests in n.
//
// A failure of the executor ends the requests at fault, never the loop.
class EventLoop {
 public:
  // Throws std::invalid_argument for a contradictory config.
  EventLoop(const EventLoopConfig& config, std::unique_ptr<StepExecutor> executor);
  // Cancels the requests that are left, waits for the steps in flight, and joins the thread.
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Any thread; returns at once. Throws LimitError: the request exceeds a limit, or the loop is shut down;
  // OverloadedError: too many are outstanding. Exactly one RequestEnd follows every accepted request.
  RequestId submit(RequestSpec spec);
  // Any thread; legal in every state. False if the request has ended and its end has been polled, or never existed.
  bool cancel(RequestId id) { return inbox_.cancel(id); }
  // Only one thread may poll. kClosed means that the loop is shut down and every event has been delivered.
  PollStatus poll(EventBatch& out, Clock::duration timeout);
  LoopStats stats() const;
  // Returns at once; poll() says when it is done.
  void shut_down(Shutdown how) { inbox_.shut_down(how); }

 private:
  void run();
  bool iterate();
  void take_mail();
  bool launch_next();
  StepBatch& in_flight(std::size_t number) { return batches_[(oldest_ + number) % batches_.size()]; }
  void collect_oldest();
  std::optional<StepError> wait_for_oldest();
  void complete_oldest();
  void take_back_late();
  void count_from(Clock::time_point instant);
  void fail_steps(const StepError& error);
  void drain();
  void fail_all(const char* what);
  void publish();

  const RequestLimits limits_;
  std::unique_ptr<StepExecutor> executor_;
  Inbox inbox_;
  EventQueue events_;

  // Only the loop's thread uses the following members.
  Scheduler scheduler_;
  std::vector<StepBatch> batches_;  // one more than there are stages
  std::size_t oldest_ = 0;          // of batches_: the next whose results are due
  std::size_t in_flight_ = 0;       // batches launched and not completed
  std::size_t owed_ = 0;  // steps that the executor has taken and whose results are not collected: at most in_flight_
  StepResult result_;
  Mail mail_;
  EventBatch staged_;
  LoopStats work_stats_;
  Clock::time_point now_;
  Clock::time_point last_results_;
  // Counted since the last results:
  Clock::duration waited_{};  // for the device
  int num_launches_ = 0;
  bool launched_only_decodes_ = true;

  mutable std::mutex stats_mutex_;
  LoopStats stats_;
  std::thread thread_;
};

}  // namespace tl
