#include "cuda/ranks/stage_link.h"

namespace tl::cuda {

StageLink::StageLink(CudaExecutor& sender, CudaExecutor& receiver) : sender_(sender), receiver_(receiver) {
  const Plan& plan = receiver.plan();
  std::size_t num_bytes = 0;
  for (const auto& [name, index] : plan.inputs) {
    const PlanTensor& tensor = plan.tensors[static_cast<std::size_t>(index)];
    const auto row_bytes = static_cast<std::size_t>(tensor.shape[1].value * item_size(tensor.dtype));
    rows_.push_back(
        {sender.address_of(sender.plan().outputs.at(name)), receiver.address_of(index), row_bytes, num_bytes});
    num_bytes += row_bytes * static_cast<std::size_t>(plan.symbols[Symbol::kNumTokens]);
  }
  for (Place& place : places_) {
    receiver.device().make_current();
    place.rows = DeviceBuffer(receiver.device(), num_bytes, "rows of another stage",
                              "build the engine with a smaller --max_num_tokens");
    place.taken = make_event();
    sender.device().make_current();
    place.sent = make_event();
  }
}

void StageLink::send(std::int64_t num_tokens) {
  ++num_sent_;
  const Stream stream = sender_.stream();
  driver().check(driver().stream_wait(stream, place().taken.get(), 0), "waiting for the next stage");
  for (const Rows& rows : rows_) {
    driver().check(driver().copy_on_device(place().rows.address() + rows.offset, rows.from,
                                           static_cast<std::size_t>(num_tokens) * rows.row_bytes, stream),
                   "sending rows to the next stage");
  }
  driver().check(driver().event_record(place().sent.get(), stream), "sending rows to the next stage");
}

void StageLink::receive(std::int64_t num_tokens) {
  const Stream stream = receiver_.stream();
  driver().check(driver().stream_wait(stream, place().sent.get(), 0), "waiting for the previous stage");
  for (const Rows& rows : rows_) {
    driver().check(driver().copy_on_device(rows.to, place().rows.address() + rows.offset,
                                           static_cast<std::size_t>(num_tokens) * rows.row_bytes, stream),
                   "taking rows of the previous stage");
  }
  driver().check(driver().event_record(place().taken.get(), stream), "taking rows of the previous stage");
}

}  // namespace tl::cuda
