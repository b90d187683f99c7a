#include "cuda/ranks/rank_communicators.h"

#include <thread>
#include <utility>

namespace tl::cuda {

RankCommunicators::RankCommunicators(const Nccl& library, std::span<const Device* const> devices,
                                     std::chrono::nanoseconds patience)
    : library_(library), devices_(devices.begin(), devices.end()), communicators_(devices.size()), patience_(patience) {
  const std::string what = "connecting " + std::to_string(devices.size()) + " ranks";
  NcclId id{};
  library_.check(library_.make_id(&id), what);
  library_.check(library_.group_start(), what);
  int result = 0;
  for (std::size_t rank = 0; rank < devices_.size() && result == 0; ++rank) {
    devices_[rank]->make_current();
    result = library_.communicator_create(&communicators_[rank], static_cast<int>(devices_.size()), id,
                                          static_cast<int>(rank));
  }
  const int ended = library_.group_end();
  library_.check(result != 0 ? result : ended, what);
}

RankCommunicators::~RankCommunicators() {
  if (!home_.is_this()) return;
  if (is_aborted()) {
    finish_abort();
  } else {
    for (NcclCommunicator communicator : communicators_) library_.communicator_destroy(communicator);
  }
}

void RankCommunicators::share(std::span<const Place> places, std::size_t bytes) const {
  const std::string what = "sharing tokens";
  const int type = nccl_type(DType::kUint8);
  library_.check(library_.group_start(), what);
  int result = 0;
  for (std::size_t rank = 0; rank < places.size() && result == 0; ++rank) {
    const auto& [address, stream] = places[rank];
    devices_[rank]->make_current();
    result = library_.broadcast(address, address, bytes, type, 0, communicators_[rank], stream);
  }
  const int ended = library_.group_end();
  library_.check(result != 0 ? result : ended, what);
}

std::string RankCommunicators::errors() const {
  std::string text;
  for (std::size_t rank = 0; rank < communicators_.size(); ++rank) {
    int error = 0;
    const int asked = library_.communicator_error(communicators_[rank], &error);
    if (asked == 0 && (error == 0 || error == kNcclInProgress)) continue;
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) + " on GPU " +
            std::to_string(devices_[rank]->index()) + ": " + library_.error_string(asked != 0 ? asked : error);
  }
  return text;
}

// The thread may outlive this object, because it waits for devices.
void RankCommunicators::abort() {
  if (std::exchange(is_aborted_, true)) return;
  std::promise<void> done;
  done_ = done.get_future();
  std::thread([&library = library_, communicators = communicators_, done = std::move(done)]() mutable {
    for (NcclCommunicator communicator : communicators) library.communicator_abort(communicator);
    done.set_value();
  }).detach();
}

void RankCommunicators::finish_abort() {
  const std::future<void> done = std::exchange(done_, {});
  if (done.valid()) done.wait_for(patience_);
}

}  // namespace tl::cuda
