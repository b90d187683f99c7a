// The queue of requests waiting for admission, including swapped-out ones, in order of service.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "schedule/request.h"

namespace tl {

// First come, first served, with priorities that age. A request's key is
//     arrival number - priority * ageing_window,
// fixed when it arrives: one level of priority is worth having arrived `ageing_window` submissions earlier. This bounds
// waiting: after request r (number a, priority p), one with number a' and priority p' precedes r only if
// a' - a < (p' - p) * window, so at most (kMaxPriority - p) * window of them ever do; and only finitely many arrived
// before r. Admission follows this order and lets no request pass a head that does not fit yet; preempted requests
// return with their old rank. So every request is served. (There are two exceptions: a request is postponed at most
// Scheduler::kMaxHolds times for a prefix that is being computed, and at most `ageing_window` short prompts pass a
// request for which the step has no time.)
class WaitQueue {
 public:
  using Entry = std::pair<Rank, std::uint32_t>;  // index in the RequestTable

  explicit WaitQueue(int ageing_window) : ageing_window_(ageing_window) {}

  Rank next_rank(int priority) {
    const std::uint64_t arrival = num_arrivals_++;
    return {static_cast<std::int64_t>(arrival) - static_cast<std::int64_t>(priority) * ageing_window_, arrival};
  }

  void insert(Rank rank, std::uint32_t index) { entries_.emplace(rank, index); }
  void erase(Rank rank, std::uint32_t index) { entries_.erase({rank, index}); }

  bool empty() const { return entries_.empty(); }
  int size() const { return static_cast<int>(entries_.size()); }
  const std::set<Entry>& entries() const { return entries_; }

 private:
  std::set<Entry> entries_;
  std::int64_t ageing_window_;
  std::uint64_t num_arrivals_ = 0;
};

}  // namespace tl
