#include "cuda/ranks/nccl_pair.h"

#include <future>
#include <thread>
#include <utility>

#include "errors.h"

namespace tl::cuda {

NcclPair::NcclPair(const Nccl& nccl, const NcclId& id, PairRole role, const Device& device, const std::string& what)
    : nccl_(nccl), role_(role), what_(what) {
  nccl_.check(nccl_.communicator_create(&communicator_, 2, id, static_cast<int>(role)), what_);
  try {
    try_out(device);
  } catch (...) {
    abort();
    throw;
  }
}

// NCCL connects two ranks at their first transfer, in which both hosts must take part.
void NcclPair::try_out(const Device& device) {
  const DeviceBuffer byte(device, 1, what_, "free memory on the device");
  const OwnedStream stream = make_stream();
  const Piece piece{byte.address(), byte.size()};
  transfer({&piece, 1}, stream.get());
  driver().check(driver().stream_synchronize(stream.get()), what_);
}

void NcclPair::transfer(std::span<const Piece> pieces, Stream stream) {
  if (communicator_ == nullptr) throw DeviceError(what_ + ": a stage has ended");
  const int type = nccl_type(DType::kUint8), other = 1 - static_cast<int>(role_);
  nccl_.check(nccl_.group_start(), what_);
  int result = 0;
  for (const Piece& piece : pieces) {
    const auto call = role_ == PairRole::kSends ? nccl_.send : nccl_.receive;
    if (result == 0) result = call(piece.data, piece.num_bytes, type, other, communicator_, stream);
  }
  const int ended = nccl_.group_end();
  nccl_.check(result != 0 ? result : ended, what_);
}

void NcclPair::abort() noexcept {
  NcclCommunicator communicator = std::exchange(communicator_, nullptr);
  if (communicator != nullptr && home_.is_this()) nccl_.communicator_abort(communicator);
}

// The threads may outlive this call, because they wait for devices.
void abort_all(std::span<NcclPair* const> pairs, std::chrono::nanoseconds patience) {
  std::vector<std::future<void>> aborted;
  for (NcclPair* const pair : pairs) {
    NcclCommunicator communicator = std::exchange(pair->communicator_, nullptr);
    if (communicator == nullptr || !pair->home_.is_this()) continue;
    std::promise<void> done;
    aborted.push_back(done.get_future());
    std::thread([&nccl = pair->nccl_, communicator, done = std::move(done)]() mutable {
      nccl.communicator_abort(communicator);
      done.set_value();
    }).detach();
  }
  const auto end = std::chrono::steady_clock::now() + patience;
  for (const std::future<void>& done : aborted) done.wait_until(end);
}

std::vector<NcclId> make_nccl_ids(const Nccl& nccl, std::size_t num_pairs) {
  std::vector<NcclId> ids(num_pairs);
  for (NcclId& id : ids) nccl.check(nccl.make_id(&id), "making an id of NCCL");
  return ids;
}

}  // namespace tl::cuda
