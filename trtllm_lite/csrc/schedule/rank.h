// The order of service.
#pragma once

#include <compare>
#include <cstdint>

namespace tl {

// A place in the order of service; WaitQueue describes what the order guarantees.
struct Rank {
  std::int64_t key = 0;
  std::uint64_t arrival = 0;
  friend auto operator<=>(const Rank&, const Rank&) = default;
};

// Ranks everything that arrives at a scheduler, whatever kind of work it is: queues that share the ranks can tell whose
// first entry comes first.
class Ranks {
 public:
  explicit Ranks(int ageing_window) : ageing_window_(ageing_window) {}

  Rank next(int priority) {
    const std::uint64_t arrival = num_arrivals_++;
    return {static_cast<std::int64_t>(arrival) - static_cast<std::int64_t>(priority) * ageing_window_, arrival};
  }

 private:
  std::int64_t ageing_window_;
  std::uint64_t num_arrivals_ = 0;
};

}  // namespace tl
