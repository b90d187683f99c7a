// The NCCL communicators of an engine whose ranks cannot access each other's memory: one for each rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "cuda/device/nccl.h"
#include "host/home_process.h"

namespace tl::cuda {

class RankCommunicators {
 public:
  // `devices`: one for each rank, in order. `patience`: the longest wait for a device at the end. Throws DeviceError.
  RankCommunicators(const Nccl& library, std::span<const Device* const> devices, std::chrono::nanoseconds patience);
  // Graphs captured with the communicators must have been destroyed before.
  ~RankCommunicators();
  RankCommunicators(const RankCommunicators&) = delete;
  RankCommunicators& operator=(const RankCommunicators&) = delete;

  const Nccl& library() const { return library_; }
  NcclCommunicator of(std::size_t rank) const { return communicators_[rank]; }

  // A rank's memory for shared data, and its stream.
  struct Place {
    DevicePtr address;
    Stream stream;
  };
  // Enqueues on all streams a broadcast of `bytes` bytes from the first rank to every other. Throws DeviceError.
  void share(std::span<const Place> places, std::size_t bytes) const;

  // The errors of ranks that the library reports; empty if there are none.
  std::string errors() const;
  // Ends the waits of ranks for each other on their devices. Graphs captured with the communicators must have been
  // destroyed before. Returns at once; the communicators cannot be used any more.
  void abort();
  bool is_aborted() const { return is_aborted_; }
  // Waits until the abort is done, but no longer than `patience`.
  void finish_abort();

 private:
  const Nccl& library_;
  const std::vector<const Device*> devices_;
  std::vector<NcclCommunicator> communicators_;
  const std::chrono::nanoseconds patience_;
  bool is_aborted_ = false;
  std::future<void> done_;  // ready when the abort is done
  HomeProcess home_;
};

}  // namespace tl::cuda
