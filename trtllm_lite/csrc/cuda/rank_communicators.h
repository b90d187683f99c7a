// The NCCL communicators of an engine whose ranks do not reach each other's memory: one for each rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "cuda/nccl.h"
#include "home_process.h"

namespace tl::cuda {

class RankCommunicators {
 public:
  // Ranks are on these devices, in order. Who ends them waits for a device for `patience` at most. Throws DeviceError.
  RankCommunicators(const Nccl& library, std::span<const Device* const> devices, std::chrono::nanoseconds patience);
  // What was captured with the communicators has been destroyed, in this order.
  ~RankCommunicators();
  RankCommunicators(const RankCommunicators&) = delete;
  RankCommunicators& operator=(const RankCommunicators&) = delete;

  const Nccl& library() const { return library_; }
  NcclCommunicator of(std::size_t rank) const { return communicators_[rank]; }

  // Where a rank has what is shared, and on which stream.
  struct Place {
    DevicePtr address;
    Stream stream;
  };
  // Puts a copy on all streams, of `bytes` that the first rank has, to every other. Throws DeviceError.
  void share(std::span<const Place> places, std::size_t bytes) const;

  // What the library says has become of ranks; empty if it knows of nothing.
  std::string errors() const;
  // Ends what ranks wait for on their devices. What was captured with the communicators has been destroyed. Returns at
  // once; the communicators are of no use any more.
  void abort();
  bool is_aborted() const { return is_aborted_; }
  // Returns when the library is done with it, or a device does not answer.
  void finish_abort();

 private:
  const Nccl& library_;
  const std::vector<const Device*> devices_;
  std::vector<NcclCommunicator> communicators_;
  const std::chrono::nanoseconds patience_;
  bool is_aborted_ = false;
  std::future<void> done_;  // with the abort
  HomeProcess home_;
};

}  // namespace tl::cuda
