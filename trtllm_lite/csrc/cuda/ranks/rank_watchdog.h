// Learns from kernels that a rank did not come to a collective, and tells all ranks to stop waiting.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/device/device.h"
#include "engine/engine.h"

namespace tl::cuda {

class RankWatchdog {
 public:
  // A rank has failed if it comes to a collective later than another by more than `timeout`. `plans`: borrowed, one for
  // each rank in order; null for ranks in other processes.
  RankWatchdog(std::vector<const Plan*> plans, std::chrono::nanoseconds timeout);
  ~RankWatchdog();

  // Adds a rank. Borrows its device; `rank_table` is the address of its RankTable (plugins/cuda/rank_table.cuh).
  void watch(const Device& device, DevicePtr rank_table);

  // The address at which kernels raise the alarm, and the nanoseconds after which they do.
  DevicePtr alarm() const { return reinterpret_cast<DevicePtr>(memory_.data()); }
  std::uint64_t timeout() const { return static_cast<std::uint64_t>(timeout_.count()); }

  // Whether a kernel or the host has given up on a rank.
  bool is_raised() const;
  // Throws DeviceError if an alarm was raised in a step that has ended. Its message names rank, collective and step.
  void check(std::uint64_t step) const;

  // Raises the alarm because a rank's part of a step could not be enqueued, which ends kernels that wait for it. Throws
  // DeviceError with the first `reason` given; check() throws the same from then on. Any thread may call this; its
  // current context changes. (If another thread's launch blocks on a full stream, the driver may block this call too.)
  [[noreturn]] void fail(const std::string& reason);

 private:
  struct Watched {
    const Device* device;
    DevicePtr is_over;  // address of is_over in the rank's table
    OwnedStream stream;
  };

  // Calls `use` for each rank whose device has not failed, with its context current.
  template <typename Use>
  void for_each_alive(const Use& use) const;

  const std::vector<const Plan*> plans_;
  const std::chrono::nanoseconds timeout_;
  PinnedBuffer memory_;
  std::vector<Watched> watched_;
  std::mutex mutex_;  // guards fail()
  std::string failure_;
  std::atomic<bool> has_failed_ = false;  // set after failure_
};

}  // namespace tl::cuda
