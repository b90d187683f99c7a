// Learns from the kernels of ranks that one of them did not come to a collective, and tells them when none is to wait.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "engine/engine.h"

namespace tl::cuda {

class RankWatchdog {
 public:
  // A rank that comes later to a collective than another by more than `timeout` has failed. The plans of all ranks, in
  // order, are borrowed; those of ranks in other processes may be null.
  RankWatchdog(std::vector<const Plan*> plans, std::chrono::nanoseconds timeout);
  ~RankWatchdog();

  // Borrows the device of a rank that has its RankTable (plugins/cuda/rank_table.cuh) at this address.
  void watch(const Device& device, DevicePtr rank_table);

  // Where kernels raise the alarm, and after how many nanoseconds.
  DevicePtr alarm() const { return reinterpret_cast<DevicePtr>(memory_.data()); }
  std::uint64_t timeout() const { return static_cast<std::uint64_t>(timeout_.count()); }

  // Whether kernels or the host have given a rank up.
  bool is_raised() const;
  // Throws DeviceError, which names rank, collective and step, if an alarm was raised in a step that has ended.
  void check(std::uint64_t step) const;

  // Raises the alarm because a rank's part of a step did not get onto its stream: kernels that wait for it end. Throws
  // DeviceError, as check() does from then on, with the `reason` that came first. Any thread may call it, whose current
  // context changes. (Where another thread's launch waits for room on a GPU, the driver may keep this waiting as long.)
  [[noreturn]] void fail(const std::string& reason);

 private:
  struct Watched {
    const Device* device;
    DevicePtr is_over;  // in the rank's table
    OwnedStream stream;
  };

  // Calls `use` for each rank whose device has not failed; its context is current.
  template <typename Use>
  void for_each_alive(const Use& use) const;

  const std::vector<const Plan*> plans_;
  const std::chrono::nanoseconds timeout_;
  PinnedBuffer memory_;
  std::vector<Watched> watched_;
  std::mutex mutex_;  // of fail()
  std::string failure_;
  std::atomic<bool> has_failed_ = false;  // set when failure_ is
};

}  // namespace tl::cuda
