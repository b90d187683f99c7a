#include "cuda/ranks/earlier_stages.h"

#include <utility>

#include "cuda/step/input_layout.h"
#include "errors.h"
#include "ranks/place.h"

namespace tl::cuda {
namespace {

using namespace std::chrono_literals;

constexpr auto kTimeBetweenLooks = 10ms;  // most steps end before the first check

}  // namespace

EarlierStages::EarlierStages(std::unique_ptr<StageCalls> calls, std::vector<CudaExecutor*> ranks,
                             std::chrono::nanoseconds patience)
    : calls_(std::move(calls)), ranks_(std::move(ranks)), patience_(patience) {}

void EarlierStages::connect(const Nccl& nccl, std::span<const NcclId> ids) {
  const RankMapping& mapping = ranks_.front()->engine().manifest().mapping;
  const auto tp_size = static_cast<std::size_t>(mapping.tp_size), first = static_cast<std::size_t>(mapping.rank);
  const CudaExecutor& drawing = *ranks_.front();
  drawing.device().make_current();
  std::vector<std::unique_ptr<NcclPair>> receivers;
  for (std::size_t part = 0; part < tp_size; ++part) {
    receivers.push_back(std::make_unique<NcclPair>(nccl, ids[part], PairRole::kSends, drawing.device(),
                                                   "sending tokens to rank " + std::to_string(part)));
    pairs_.push_back(receivers.back().get());
  }
  tokens_ = std::make_unique<Outbox>(drawing, std::move(receivers), last_tokens(drawing).num_bytes,
                                     static_cast<std::size_t>(mapping.pp_size));
  for (std::size_t part = 0; part < tp_size; ++part) {
    const CudaExecutor& rank = *ranks_[part];
    rank.device().make_current();
    auto sender = std::make_unique<NcclPair>(nccl, ids[first + part], PairRole::kReceives, rank.device(),
                                             "receiving rows of rank " + std::to_string(first + part - tp_size));
    pairs_.push_back(sender.get());
    rows_.push_back(std::make_unique<NcclRowSource>(rank, std::move(sender)));
  }
}

RowSource* EarlierStages::rows_of(std::size_t part) const {
  if (part < rows_.size()) return rows_[part].get();
  throw DeviceError("expected the stages of the engine to be connected before a step");
}

std::span<const std::byte> EarlierStages::packed(const StepShape& shape, const std::byte* inputs) const {
  if (shape.num_tokens == 0) return {};
  const CudaExecutor& rank = *ranks_.front();
  return {inputs, rank.input_layout(rank.extents(shape)).bytes};
}

void EarlierStages::step(std::uint64_t number, std::span<const CopyOrder> copies, const StepShape& shape,
                         const std::byte* inputs) {
  calls_->step(number, copies, shape, packed(shape, inputs));
}

void EarlierStages::capture(const StepShape& shape, const std::byte* inputs) {
  calls_->capture(shape, packed(shape, inputs));
}

void EarlierStages::send_tokens() {
  const Piece tokens = last_tokens(*ranks_.front());
  tokens_->send({&tokens, 1});
}

void EarlierStages::look_after(std::uint64_t step) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_look_ < kTimeBetweenLooks) return;
  last_look_ = now;
  calls_->check(step);
}

void EarlierStages::fail(const std::string& why) {
  calls_->fail(why);
  abort();
}

void EarlierStages::abort() { abort_all(pairs_, patience_); }

}  // namespace tl::cuda
