// The deadlines of living work.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "schedule/clock.h"

namespace tl {

class Deadlines {
 public:
  // `index`: that of the work in the owner's table.
  void add(Clock::time_point deadline, std::uint32_t index) { entries_.emplace(deadline, index); }
  void remove(Clock::time_point deadline, std::uint32_t index) { entries_.erase({deadline, index}); }

  // The work with the earliest deadline if that has passed.
  std::optional<std::uint32_t> passed(Clock::time_point now) const {
    if (entries_.empty() || entries_.begin()->first > now) return std::nullopt;
    return entries_.begin()->second;
  }

 private:
  std::set<std::pair<Clock::time_point, std::uint32_t>> entries_;
};

}  // namespace tl
