// A queue of events from the loop to one consumer.
#pragma once

#include <condition_variable>
#include <iterator>
#include <mutex>
#include <utility>

#include "schedule/loop/events.h"

namespace tl {

enum class PollStatus : std::uint8_t { kEvents, kTimeout, kClosed };

// Bounded by construction: a request adds at most max_new_tokens events, the events of prompt chunks and one end, and
// the Inbox bounds the number of requests whose end has not been polled. The two sides swap buffers, so nothing is
// allocated once the buffers have grown.
class EventQueue {
 public:
  // Moves all events out of `events`, leaving it empty.
  void publish(EventBatch& events) {
    if (events.empty()) return;
    {
      const std::lock_guard lock(mutex_);
      if (pending_.empty()) {
        std::swap(pending_, events);
      } else {
        append(pending_.tokens, events.tokens);
        append(pending_.ends, events.ends);
        pending_.short_of_blocks = pending_.short_of_blocks || events.short_of_blocks;
      }
    }
    events.clear();
    published_.notify_one();
  }

  // Marks that no event follows.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    published_.notify_one();
  }

  // Replaces the content of `out` by all published events. Waits for one for at most `timeout`.
  PollStatus poll(EventBatch& out, Clock::duration timeout) {
    out.clear();
    std::unique_lock lock(mutex_);
    published_.wait_for(lock, timeout, [&] { return closed_ || !pending_.empty(); });
    if (pending_.empty()) return closed_ ? PollStatus::kClosed : PollStatus::kTimeout;
    std::swap(out, pending_);
    return PollStatus::kEvents;
  }

 private:
  template <typename T>
  static void append(std::vector<T>& to, std::vector<T>& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  }

  std::mutex mutex_;
  std::condition_variable published_;
  EventBatch pending_;
  bool closed_ = false;
};

}  // namespace tl
