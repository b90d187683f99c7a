#include "cuda/ranks/nccl_link.h"

#include <algorithm>

#include "engine/checks/plan_check.h"
#include "engine/checks/port_check.h"
#include "errors.h"

namespace tl::cuda {
namespace {

constexpr std::size_t kPlacesOfRows = 2;

std::size_t total_bytes(std::span<const Piece> pieces) {
  std::size_t total = 0;
  for (const Piece& piece : pieces) total += piece.num_bytes;
  return total;
}

}  // namespace

Outbox::Outbox(const CudaExecutor& executor, std::vector<std::unique_ptr<NcclPair>> receivers, std::size_t num_bytes,
               std::size_t num_places)
    : executor_(executor), receivers_(std::move(receivers)), stream_(make_stream()) {
  for (std::size_t place = 0; place < num_places; ++place) {
    places_.push_back({DeviceBuffer(executor.device(), num_bytes, "data sent to another stage",
                                    "build the engine with a smaller --max_num_tokens"),
                       make_event(), make_event()});
  }
}

void Outbox::send(std::span<const Piece> pieces) {
  const Stream computing = executor_.stream(), sending = stream_.get();
  const Place& place = places_[num_sent_++ % places_.size()];
  constexpr const char* kWhat = "sending to another stage";
  driver().check(driver().stream_wait(computing, place.sent.get(), 0), kWhat);
  std::vector<Piece> copies;
  DevicePtr to = place.bytes.address();
  for (const Piece& piece : pieces) {
    driver().check(driver().copy_on_device(to, piece.data, piece.num_bytes, computing), kWhat);
    copies.push_back({to, piece.num_bytes});
    to += piece.num_bytes;
  }
  driver().check(driver().event_record(place.filled.get(), computing), kWhat);
  driver().check(driver().stream_wait(sending, place.filled.get(), 0), kWhat);
  for (const auto& receiver : receivers_) receiver->transfer(copies, sending);
  driver().check(driver().event_record(place.sent.get(), sending), kWhat);
}

// Memory may be freed only after the device has finished with it.
Outbox::~Outbox() {
  static_cast<void>(executor_.device().try_make_current());
  for (const auto& receiver : receivers_) receiver->abort();
}

NcclRows::NcclRows(const CudaExecutor& executor, const std::map<std::string, int>& tensors) {
  for (const auto& [name, index] : tensors) {
    const PlanTensor& tensor = executor.plan().tensors[static_cast<std::size_t>(index)];
    const auto row_bytes = static_cast<std::size_t>(tensor.shape[1].value * item_size(tensor.dtype));
    rows_.emplace_back(executor.address_of(index), row_bytes);
  }
}

std::vector<Piece> NcclRows::pieces(std::int64_t num_tokens) const {
  std::vector<Piece> pieces;
  for (const auto& [data, row_bytes] : rows_) {
    pieces.push_back({data, static_cast<std::size_t>(num_tokens) * row_bytes});
  }
  return pieces;
}

NcclRowSink::NcclRowSink(const CudaExecutor& executor, std::unique_ptr<NcclPair> receiver)
    : rows_(executor, sent_by(executor.plan())), outbox_([&] {
        const std::vector<Piece> most = rows_.pieces(executor.plan().symbols[Symbol::kNumTokens]);
        std::vector<std::unique_ptr<NcclPair>> only;
        only.push_back(std::move(receiver));
        return Outbox(executor, std::move(only), total_bytes(most), kPlacesOfRows);
      }()) {}

NcclRowSource::NcclRowSource(const CudaExecutor& executor, std::unique_ptr<NcclPair> sender)
    : rows_(executor, executor.plan().inputs), sender_(std::move(sender)), stream_(executor.stream()) {}

Piece last_tokens(const CudaExecutor& executor) {
  const std::vector<PlanTensor>& tensors = executor.plan().tensors;
  const auto found = std::ranges::find(tensors, "last_tokens", &PlanTensor::name);
  if (found == tensors.end()) {
    throw EngineError("plan.tensors: expected last_tokens in the first stage and the last, found none: build it again");
  }
  return {executor.address_of(static_cast<int>(found - tensors.begin())),
          static_cast<std::size_t>(executor.num_slots()) * sizeof(std::int32_t)};
}

}  // namespace tl::cuda
