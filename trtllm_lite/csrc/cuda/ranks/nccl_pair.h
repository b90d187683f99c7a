// A one-way NCCL connection between two GPUs of different processes.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "cuda/device/nccl.h"

namespace tl::cuda {

// A range of device memory to transfer.
struct Piece {
  DevicePtr data;
  std::size_t num_bytes;
};

enum class PairRole : int { kSends = 0, kReceives = 1 };  // the values are NCCL ranks

class NcclPair {
 public:
  // Waits until the other side has come with the same id and the other role, and one byte has been transferred. Later
  // transfers then need no action of the other side's host. `device` must be current and idle. `what` names the
  // connection in errors. Throws DeviceError.
  NcclPair(const Nccl& nccl, const NcclId& id, PairRole role, const Device& device, const std::string& what);
  ~NcclPair() { abort(); }
  NcclPair(const NcclPair&) = delete;
  NcclPair& operator=(const NcclPair&) = delete;

  // Enqueues the sending or receiving of the pieces on a stream. They must have the same sizes on the other side.
  void transfer(std::span<const Piece> pieces, Stream stream);
  // Ends transfers that are in flight, without the other side. No transfer may follow.
  void abort() noexcept;

 private:
  friend void abort_all(std::span<NcclPair* const> pairs, std::chrono::nanoseconds patience);

  void try_out(const Device& device);

  const Nccl& nccl_;
  const PairRole role_;
  const std::string what_;
  NcclCommunicator communicator_ = nullptr;
  HomeProcess home_;
};

// Aborts pairs concurrently, because one may end only after others have. Waits at most `patience`, as a device may
// never answer.
void abort_all(std::span<NcclPair* const> pairs, std::chrono::nanoseconds patience);

// Makes the ids of `num_pairs` pairs, which the caller gives to all processes. Throws DeviceError.
std::vector<NcclId> make_nccl_ids(const Nccl& nccl, std::size_t num_pairs);

}  // namespace tl::cuda
