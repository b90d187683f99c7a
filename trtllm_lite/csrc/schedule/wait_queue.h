// A queue of work that waits for admission, in order of service.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "schedule/rank.h"

namespace tl {

// First come, first served, with priorities that age. A request's key is
//     arrival number - priority * ageing_window,
// fixed when it arrives: one level of priority is worth having arrived `ageing_window` submissions earlier. This bounds
// waiting: after request r (number a, priority p), one with number a' and priority p' precedes r only if
// a' - a < (p' - p) * window, so at most (kMaxPriority - p) * window of them ever do; and only finitely many arrived
// before r. Admission follows this order and lets no request pass a head that does not fit yet; preempted requests
// return with their old rank. So every request is served. (There are two exceptions: a request is postponed at most
// Admission::kMaxHolds times for a prefix that is being computed, and at most `ageing_window` short prompts pass a
// request for which the step has no time.)
class WaitQueue {
 public:
  using Entry = std::pair<Rank, std::uint32_t>;  // index in the owner's table

  void insert(Rank rank, std::uint32_t index) { entries_.emplace(rank, index); }
  void erase(Rank rank, std::uint32_t index) { entries_.erase({rank, index}); }

  bool empty() const { return entries_.empty(); }
  int size() const { return static_cast<int>(entries_.size()); }
  const std::set<Entry>& entries() const { return entries_; }
  std::uint32_t head() const { return entries_.begin()->second; }

 private:
  std::set<Entry> entries_;
};

}  // namespace tl
