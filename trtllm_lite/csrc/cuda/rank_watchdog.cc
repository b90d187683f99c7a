#include "cuda/rank_watchdog.h"

#include <atomic>
#include <string>

#include "cuda/rank_table.cuh"
#include "errors.h"
#include "ranks/failed_rank.h"

namespace tl::cuda {
namespace {

int read(const int& word) { return std::atomic_ref(const_cast<int&>(word)).load(std::memory_order_acquire); }

}  // namespace

RankWatchdog::RankWatchdog(int num_ranks, std::chrono::nanoseconds timeout)
    : num_ranks_(num_ranks), timeout_(timeout), memory_(sizeof(RankAlarm), "alarm of ranks", "free host memory") {
  *reinterpret_cast<RankAlarm*>(memory_.data()) = {};
}

bool RankWatchdog::is_raised() const { return read(reinterpret_cast<const RankAlarm*>(memory_.data())->missing) != 0; }

void RankWatchdog::check(const Plan& plan, std::uint64_t step) const {
  const auto& alarm = *reinterpret_cast<const RankAlarm*>(memory_.data());
  const int missing = read(alarm.missing), site = read(alarm.site);
  if (missing == 0) return;
  const std::vector<std::string>& names = plan.cuda->collectives;
  const auto number = static_cast<std::size_t>(site);
  const std::string name = number < names.size() ? names[number] : "unknown";
  throw DeviceError(did_not_come("rank " + std::to_string(missing - 1), num_ranks_,
                                 "collective " + std::to_string(site) + " (" + name + ")", step, timeout_));
}

}  // namespace tl::cuda
