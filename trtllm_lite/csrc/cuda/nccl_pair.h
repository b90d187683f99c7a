// Two GPUs of different processes, one of which sends to the other through NCCL.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "cuda/nccl.h"

namespace tl::cuda {

// Bytes that go from one device to another.
struct Piece {
  DevicePtr data;
  std::size_t num_bytes;
};

enum class PairRole : int { kSends = 0, kReceives = 1 };  // the values are ranks of the communicator

class NcclPair {
 public:
  // Waits until the other side has come, with the same id and the other role, and a byte has gone over: later transfers
  // need nothing of the other side's host any more. The device takes part, which is current; nothing else is on it.
  // Throws DeviceError; `what` says what for.
  NcclPair(const Nccl& nccl, const NcclId& id, PairRole role, const Device& device, const std::string& what);
  ~NcclPair() { abort(); }
  NcclPair(const NcclPair&) = delete;
  NcclPair& operator=(const NcclPair&) = delete;

  // Puts what sends the pieces, or receives them, on a stream. They are as large on the other side.
  void transfer(std::span<const Piece> pieces, Stream stream);
  // Ends what is on a stream without the other side. Nothing can be transferred any more.
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

// Aborts pairs at once, because one may end only when others have. It waits no longer than `patience`: a device may
// never answer.
void abort_all(std::span<NcclPair* const> pairs, std::chrono::nanoseconds patience);

// The ids of `num_pairs` pairs, made by whoever tells all others. Throws DeviceError.
std::vector<NcclId> make_nccl_ids(const Nccl& nccl, std::size_t num_pairs);

}  // namespace tl::cuda
