#include "cuda/rank_watchdog.h"

#include <atomic>
#include <string>
#include <utility>

#include "cuda/rank_table.cuh"
#include "errors.h"
#include "ranks/failed_rank.h"

namespace tl::cuda {
namespace {

int read(const int& word) { return std::atomic_ref(const_cast<int&>(word)).load(std::memory_order_acquire); }

}  // namespace

RankWatchdog::RankWatchdog(std::vector<const Plan*> plans, std::chrono::nanoseconds timeout)
    : plans_(std::move(plans)), timeout_(timeout), memory_(sizeof(RankAlarm), "alarm of ranks", "free host memory") {
  *reinterpret_cast<RankAlarm*>(memory_.data()) = {};
}

bool RankWatchdog::is_raised() const { return read(reinterpret_cast<const RankAlarm*>(memory_.data())->missing) != 0; }

void RankWatchdog::check(std::uint64_t step) const {
  const auto& alarm = *reinterpret_cast<const RankAlarm*>(memory_.data());
  const int missing = read(alarm.missing), site = read(alarm.site);
  if (missing == 0) return;
  const auto rank = static_cast<std::size_t>(missing - 1), number = static_cast<std::size_t>(site);
  const std::vector<std::string>& names = plans_.at(rank)->cuda->collectives;
  const std::string name = number < names.size() ? names[number] : "unknown";
  throw DeviceError(did_not_come("rank " + std::to_string(rank), static_cast<int>(plans_.size()),
                                 "collective " + std::to_string(site) + " (" + name + ")", step, timeout_));
}

}  // namespace tl::cuda
