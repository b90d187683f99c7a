#include "cuda/ranks/rank_watchdog.h"

#include <cstddef>
#include <utility>

#include "cuda/rank_table.cuh"
#include "errors.h"
#include "ranks/failed_rank.h"

namespace tl::cuda {
namespace {

// Page-locked memory that GPUs access.
struct Shared {
  RankAlarm alarm;
  decltype(RankTable::is_over) is_over;  // the value that `fail` copies to the tables
};

int read(const int& word) { return std::atomic_ref(const_cast<int&>(word)).load(std::memory_order_acquire); }

}  // namespace

RankWatchdog::RankWatchdog(std::vector<const Plan*> plans, std::chrono::nanoseconds timeout)
    : plans_(std::move(plans)), timeout_(timeout), memory_(sizeof(Shared), "alarm of ranks", "free host memory") {
  *reinterpret_cast<Shared*>(memory_.data()) = {.alarm = {}, .is_over = 1};
}

RankWatchdog::~RankWatchdog() {
  if (has_failed_) for_each_alive([](const Watched& rank) { driver().stream_synchronize(rank.stream.get()); });
}

void RankWatchdog::watch(const Device& device, DevicePtr rank_table) {
  device.make_current();
  watched_.push_back({&device, rank_table + offsetof(RankTable, is_over), make_stream()});
}

template <typename Use>
void RankWatchdog::for_each_alive(const Use& use) const {
  for (const Watched& rank : watched_) {
    if (rank.device->try_make_current()) use(rank);
  }
}

bool RankWatchdog::is_raised() const {
  return has_failed_ || read(reinterpret_cast<const RankAlarm*>(memory_.data())->missing) != 0;
}

// The signal is a copy, not a kernel, because kernels that wait may occupy all multiprocessors. A GPU that refuses the
// copy has failed.
void RankWatchdog::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!has_failed_) {
    failure_ = reason;
    has_failed_ = true;
    const auto& is_over = reinterpret_cast<const Shared*>(memory_.data())->is_over;
    for_each_alive([&](const Watched& rank) {
      driver().copy_to_device(rank.is_over, &is_over, sizeof(is_over), rank.stream.get());
    });
  }
  throw DeviceError(failure_);
}

void RankWatchdog::check(std::uint64_t step) const {
  if (has_failed_) throw DeviceError(failure_);  // written once, before the flag
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
