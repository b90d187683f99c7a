// Measures how long streams wait for their next tokens.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tl {

// A histogram of the times between successive deliveries to a stream, whatever their numbers of tokens.
class TokenGaps {
 public:
  using Clock = std::chrono::steady_clock;

  // The time of a stream's last delivery.
  using Mark = std::optional<Clock::time_point>;

  // `bounds`: inclusive upper bounds of buckets in seconds, ascending; one more bucket is above them.
  explicit TokenGaps(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

  // Records a delivery at `now`. A stream's first delivery ends no gap; deliveries at the same time count as one.
  void count(Mark& mark, Clock::time_point now) {
    if (mark && *mark != now) {
      const double seconds = std::chrono::duration<double>(now - *mark).count();
      const auto bucket = std::ranges::lower_bound(bounds_, seconds) - bounds_.begin();
      ++counts_[static_cast<std::size_t>(bucket)];
      seconds_ += seconds;
    }
    mark = now;
  }

  const std::vector<std::uint64_t>& counts() const { return counts_; }  // by bucket
  double seconds() const { return seconds_; }                           // sum of all gaps

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;
  double seconds_ = 0;
};

}  // namespace tl
