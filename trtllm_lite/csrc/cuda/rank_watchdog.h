// Learns from the kernels of ranks that one of them did not come to a collective.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "cuda/device.h"
#include "engine/engine.h"

namespace tl::cuda {

class RankWatchdog {
 public:
  // A rank that comes later to a collective than another by more than `timeout` has failed. The plans of all ranks, in
  // order, are borrowed; those of ranks in other processes may be null.
  RankWatchdog(std::vector<const Plan*> plans, std::chrono::nanoseconds timeout);

  // Where kernels raise the alarm (plugins/cuda/rank_table.cuh), and after how many nanoseconds.
  DevicePtr alarm() const { return reinterpret_cast<DevicePtr>(memory_.data()); }
  std::uint64_t timeout() const { return static_cast<std::uint64_t>(timeout_.count()); }

  bool is_raised() const;
  // Throws DeviceError, which names rank, collective and step, if an alarm was raised in a step that has ended.
  void check(std::uint64_t step) const;

 private:
  const std::vector<const Plan*> plans_;
  const std::chrono::nanoseconds timeout_;
  PinnedBuffer memory_;
};

}  // namespace tl::cuda
