// The mailbox by which other threads send requests, cancellations and orders of memory to the event loop, which empties
// it once a step.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "schedule/loop/events.h"
#include "schedule/request.h"

namespace tl {

enum class Shutdown : std::uint8_t {
  kDrain,   // accepted requests run to their end
  kCancel,  // accepted requests end at once, as cancelled
};

// A caller that wants slabs of the KV cache's memory, and waits for them.
struct LendOrder {
  int num_slabs;
  std::promise<std::vector<int>> slabs;
};

struct Mail {
  std::vector<std::unique_ptr<Request>> submissions;
  std::vector<RequestId> cancellations;
  std::vector<LendOrder> lend_orders;
  std::vector<int> returned_slabs;
};

// A request is outstanding from submit() until its end has been given to the consumer. At most max_requests requests
// are outstanding, which bounds the mailbox, the scheduler and the event queue however slow the consumer is (orders of
// memory come from one thread, which waits for each). At most half of them may be extra sequences (RequestSpec::extra),
// so that a few users who ask for many sequences leave room for others.
class Inbox {
 public:
  // Calls `on_mail` whenever there is mail, from the thread that brings it.
  Inbox(int max_requests, int max_held, std::function<void()> on_mail)
      : max_requests_(max_requests), max_held_(max_held), on_mail_(std::move(on_mail)) {}

  // Called from any thread, at the time `now`. Throws OverloadedError at once if too many are outstanding, LimitError
  // if the loop is shutting down.
  RequestId submit(RequestSpec spec, Clock::time_point now);
  // Submits several requests, or none of them if it throws. Their ids are consecutive; returns the first.
  RequestId submit_all(std::vector<RequestSpec> specs, Clock::time_point now);
  // Called from any thread. Between hold() and release() requests stay in the mailbox, so that those of one caller
  // start in one step; but max_held of them are enough for a step, and a shutdown takes all.
  void hold();
  void release();
  // Called from any thread. Returns false if no such request is outstanding.
  bool cancel(RequestId id);
  // Called from any thread. Asks for slabs of the KV cache's memory. Throws LimitError if the loop is shutting down.
  std::future<std::vector<int>> order_slabs(int num_slabs);
  // Called from any thread. Brings slabs back.
  void return_slabs(const std::vector<int>& slabs);
  // Called from any thread. A second call can only change kDrain to kCancel.
  void shut_down(Shutdown how);
  // Called by the consumer's thread, which has received these ends.
  void forget(const std::vector<RequestEnd>& ends);

  // Called by the loop's thread.
  bool has_mail() const { return has_mail_.load(std::memory_order_acquire); }
  void take(Mail& mail);
  void wait_for_mail();
  bool draining() const { return draining_.load(std::memory_order_acquire); }
  bool cancelling() const { return cancelling_.load(std::memory_order_acquire); }

 private:
  const int max_requests_, max_held_;
  const std::function<void()> on_mail_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  Mail mail_;
  struct Outstanding {
    bool extra = false, cancelled = false;
  };
  void check_open() const;
  void check_room(std::int64_t count, bool extra) const;
  void push(std::unique_ptr<Request> request);
  void announce_mail();
  bool holds() const;

  std::unordered_map<RequestId, Outstanding> outstanding_;
  int num_extra_ = 0;  // extra ones among outstanding_
  RequestId last_id_ = 0;
  int num_holds_ = 0;
  std::atomic<bool> has_mail_{false};
  std::atomic<bool> draining_{false};  // no more submissions are accepted
  std::atomic<bool> cancelling_{false};
};

}  // namespace tl
