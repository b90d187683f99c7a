// The thread that owns planner, KV cache and executor, and keeps the device busy.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "executor/step.h"
#include "schedule/loop/event_queue.h"
#include "schedule/loop/inbox.h"
#include "schedule/loop/loop_config.h"
#include "schedule/loop/loop_stats.h"
#include "schedule/loop/step_log.h"
#include "schedule/planner.h"

namespace tl {

// Step n+1 is prepared and launched while step n is in flight, before the results of n are read, unless n is awaited.
// So the end of a request is detected one step late, and its row in step n+1 is discarded. (A GPU knows stop tokens by
// itself and skips attention for such a row: plugins/sample/slot.cuh.) In a pipeline of stages, further steps of other
// requests are in flight, and n+1 means the next step of the requests in n.
//
// A failure of the executor ends the requests that caused it, never the loop.
class EventLoop {
 public:
  // Throws std::invalid_argument for a contradictory config.
  EventLoop(const EventLoopConfig& config, std::unique_ptr<StepExecutor> executor);
  // Cancels the requests that are left, waits for the steps in flight, and joins the thread.
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Called from any thread; returns at once. Exactly one RequestEnd follows every accepted request. Throws LimitError
  // if the request exceeds a limit or the loop is shut down, OverloadedError if too many are outstanding.
  RequestId submit(RequestSpec spec);
  // Submits several requests, or none of them if it throws. Their ids are consecutive; returns the first.
  RequestId submit_all(std::vector<RequestSpec> specs);
  // Called from any thread. Requests that are submitted between hold() and release() start in one step, as far as the
  // limits of a step allow.
  void hold() { inbox_.hold(); }
  void release() { inbox_.release(); }
  // Called from any thread, in every state. Returns false if the request never existed or its end has been polled.
  bool cancel(RequestId id) { return inbox_.cancel(id); }
  // Called by one thread only. kClosed means that the loop is shut down and every event has been delivered.
  PollStatus poll(EventBatch& out, Clock::duration timeout);
  // Called from any thread. Takes memory from the KV cache for another use of the device: waits until no step reaches
  // it, and returns the numbers of `num_slabs` slabs (KvManagerConfig::slabs). Requests go on meanwhile. Throws
  // LimitError if the loop is shut down, std::logic_error for more slabs than the layout allows.
  std::vector<int> lend_slabs(int num_slabs);
  // Called from any thread; returns at once.
  void return_slabs(const std::vector<int>& slabs) { inbox_.return_slabs(slabs); }
  LoopStats stats() const;
  // Called from any thread. Whether a step failed because the device did (DeviceError).
  bool device_failed() const { return device_failed_.load(std::memory_order_relaxed); }
  // The log of steps, which any thread may use.
  StepLog& step_log() { return step_log_; }
  // Starts the shutdown and returns at once; poll() tells when it is done.
  void shut_down(Shutdown how) { inbox_.shut_down(how); }

 private:
  void run();
  bool iterate();
  void take_mail();
  void hand_out_slabs();
  bool launch_next();
  StepBatch& in_flight(std::size_t number) { return batches_[(oldest_ + number) % batches_.size()]; }
  void collect_oldest();
  std::optional<StepError> wait_for_oldest();
  void complete_oldest();
  void take_back_late();
  void count_from(Clock::time_point instant);
  void fail_steps(const StepError& error);
  template <typename Fn>
  std::optional<StepError> attempt(Fn&& call);
  void drain();
  void fail_all(const char* what);
  void publish();

  const EventLoopConfig::Check check_;
  const std::function<Clock::time_point()> clock_;
  std::unique_ptr<StepExecutor> executor_;
  Inbox inbox_;
  EventQueue events_;

  // Only the loop's thread uses the following members.
  std::unique_ptr<Planner> planner_;
  std::vector<StepBatch> batches_;  // num_stages() + 1 of them
  std::size_t oldest_ = 0;          // index into batches_ of the next one whose results are due
  std::size_t in_flight_ = 0;       // batches launched but not completed
  std::size_t owed_ = 0;            // steps launched whose results the executor still owes: at most in_flight_
  StepResult result_;
  Mail mail_;
  std::deque<LendOrder> lend_orders_;
  std::vector<int> lent_;  // slabs for the first of them
  EventBatch unpublished_;
  LoopStats work_stats_;
  Clock::time_point now_;
  Clock::time_point last_results_;
  // Sums since the last results. waited_ is the time spent waiting for the device.
  Clock::duration waited_{};
  int num_launches_ = 0;
  bool launched_only_decodes_ = true;

  std::atomic<bool> device_failed_{false};
  StepLog step_log_;
  mutable std::mutex stats_mutex_;
  LoopStats stats_;
  std::thread thread_;
};

}  // namespace tl
