#include "cuda/step/cuda_encoder_steps.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>

#include "engine/module.h"
#include "engine/vocabulary.h"
#include "executor/beside.h"
#include "executor/embedding.h"
#include "sample/slot.cuh"

namespace tl::cuda {
namespace {

// How often a step is looked at whose end nobody has told of. A device that fails does not tell.
constexpr std::chrono::milliseconds kLook{50};

const Port& made_by(const CudaExecutor& executor) { return only_module(executor.engine().manifest()).outputs.front(); }

}  // namespace

CudaEncoderSteps::CudaEncoderSteps(CudaExecutor& executor, SideStream* side, const StepBounds& bounds)
    : executor_(executor),
      side_(side),
      bounds_(bounds),
      output_(executor.plan().outputs.at(made_by(executor).name)),
      embedding_size_(static_cast<std::size_t>(made_by(executor).shape[1].value)),
      tokens_per_row_(only_module(executor.engine().manifest()).tokens_per_row),
      ends_(side == nullptr ? OwnedStream() : make_stream()) {
  executor_.device().make_current();
  for (Flight& flight : flights_) {
    const Symbol rows = tokens_per_row_ == 0 ? Symbol::kNumSeqs : Symbol::kNumImageRows;
    flight = make_flight(executor_.max_input_bytes(), executor_.plan().symbols[rows]);
  }
  if (side_ != nullptr) beside_ = make_flight(side_->max_input_bytes(), bounds.max_rows);
}

CudaEncoderSteps::Flight CudaEncoderSteps::make_flight(std::size_t input_bytes, std::int64_t max_rows) const {
  return {.inputs = PinnedBuffer(input_bytes, "inputs of a step", "build the engine with a smaller --max_num_tokens"),
          .embeddings = PinnedBuffer(static_cast<std::size_t>(max_rows) * embedding_size_ * sizeof(float), "embeddings",
                                     "build the engine with a smaller --max_batch_size"),
          .started = make_event(),
          .ended = make_event()};
}

// Steps at once would share what kernels keep in the engine's state. Encoders have none.
std::unique_ptr<StepExecutor> CudaExecutor::make_encoder_steps() {
  const StepBounds bounds = plan_.state_bytes > 0 ? StepBounds{} : beside_bounds(engine_.manifest(), kSideTokens);
  device_.make_current();
  if (bounds.max_rows > 0 && side_ == nullptr) {
    const InputLayout largest = input_layout(beside_extents(plan_.symbols, kSideTokens));
    side_ = std::make_unique<SideStream>(device_, plan_, programs_, addresses_, largest);
  }
  return std::make_unique<CudaEncoderSteps>(*this, side_.get(), bounds);
}

CudaEncoderSteps::~CudaEncoderSteps() {
  if (!executor_.device().try_make_current()) return;
  driver().stream_synchronize(executor_.stream());
  if (side_ == nullptr) return;
  driver().stream_synchronize(side_->stream());
  driver().stream_synchronize(ends_.get());
}

void CudaEncoderSteps::launch(const StepBatch& batch) {
  if (batch.turn == StepTurn::kGoOn) {
    launched_.push_back({paused_, batch.pause_after > 0});
    return;
  }
  executor_.device().make_current();
  Flight& flight = flight_for(batch.turn);
  try {
    enqueue(batch, flight);
    if (batch.pause_after > 0) announce_end(flight);
  } catch (...) {  // what was enqueued may still read the inputs
    driver().stream_synchronize(stream_of(flight));
    throw;
  }
  launched_.push_back({&flight, batch.pause_after > 0});
  const std::lock_guard lock(mutex_);
  has_mail_ = true;  // texts may wait already
}

// A flight that no step uses. A paused step that is given up uses its own until it has ended.
CudaEncoderSteps::Flight& CudaEncoderSteps::flight_for(StepTurn turn) {
  if (turn == StepTurn::kBeside) return beside_;
  if (std::exchange(paused_, nullptr) != nullptr) driver().stream_synchronize(executor_.stream());
  last_ = 1 - last_;
  return flights_[last_];
}

Stream CudaEncoderSteps::stream_of(const Flight& flight) const {
  return &flight == &beside_ ? side_->stream() : executor_.stream();
}

void CudaEncoderSteps::enqueue(const StepBatch& batch, Flight& flight) {
  StepShape shape{.num_tokens = std::ssize(batch.token_ids), .num_seqs = std::ssize(batch.rows)};
  for (const auto& rows : batch.token_rows) shape.num_token_rows += std::ssize(rows->positions);
  flight.counts.clear();
  for (const StepRow& row : batch.rows) flight.counts.push_back(num_embeddings(row.num_tokens, tokens_per_row_));
  const Extents step = executor_.extents(shape);
  pack(batch, executor_.input_layout(step), flight.inputs.data());
  const Stream stream = stream_of(flight);
  record(flight.started, stream);
  if (&flight == &beside_) {
    executor_.enqueue_beside(shape, flight.inputs.data());
  } else {
    executor_.enqueue_step(shape, flight.inputs.data());
  }
  copy_embeddings(step, flight);
  record(flight.ended, stream);
}

void CudaEncoderSteps::copy_embeddings(const Extents& step, Flight& flight) const {
  const OutputPlace rows = find_output(executor_.plan(), step, made_by(executor_).name, {});
  const DevicePtr from = &flight == &beside_ ? side_->address_of(output_) : executor_.address_of(output_);
  driver().check(driver().copy_to_host(flight.embeddings.data(), from, rows.bytes(), stream_of(flight)),
                 "copying embeddings");
}

// Writes the inputs of a step that draws no tokens and has no cache.
void CudaEncoderSteps::pack(const StepBatch& batch, const InputLayout& layout, std::byte* out) const {
  const auto at = [&](StepInputIndex input) { return reinterpret_cast<std::int32_t*>(out + layout.offsets[input]); };
  std::ranges::copy(batch.token_ids, at(kTokenIds));
  std::fill_n(at(kTokenSlots), batch.token_ids.size(), kNoSlot);
  std::fill_n(at(kPastLens), batch.rows.size(), 0);
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const StepRow& row = batch.rows[i];
    at(kCuSeqlens)[i] = row.first_token;
    std::int32_t* positions = at(kPositionIds) + row.first_token;
    std::iota(positions, positions + row.num_tokens, 0);
  }
  at(kCuSeqlens)[batch.rows.size()] = static_cast<std::int32_t>(batch.token_ids.size());
  std::int32_t number = 0;
  for (std::size_t i = 0; i < batch.token_rows.size(); ++i) {
    const PromptRows& own = *batch.token_rows[i];
    std::memcpy(out + layout.offsets[kTokenRows] + static_cast<std::size_t>(number) * own.row_bytes, own.rows.data(),
                own.rows.size());
    for (const std::int32_t position : own.positions) at(kTokenIds)[batch.rows[i].first_token + position] = ~number++;
  }
}

// Tells of the end of a step from another stream, so that the step after it need not wait for the host.
void CudaEncoderSteps::announce_end(const Flight& flight) {
  const auto tell_end = [](void* steps) { static_cast<CudaEncoderSteps*>(steps)->tell(false); };
  driver().check(driver().stream_wait(ends_.get(), flight.ended.get(), 0), "waiting for a step");
  driver().check(driver().launch_host_function(ends_.get(), tell_end, this), "waiting for a step");
}

void CudaEncoderSteps::record(const OwnedEvent& event, Stream stream) const {
  driver().check(driver().event_record(event.get(), stream), "timing a step");
}

void CudaEncoderSteps::wake() { tell(true); }

void CudaEncoderSteps::tell(bool of_mail) {
  const std::lock_guard lock(mutex_);
  ++num_told_;
  has_mail_ = has_mail_ || of_mail;
  told_.notify_one();
}

// Waits for the end of a step, or for mail. Returns whether the step has ended.
bool CudaEncoderSteps::ends_before_mail(const Flight& flight) {
  while (true) {
    std::unique_lock lock(mutex_);
    const std::uint64_t seen = num_told_;
    lock.unlock();
    if (driver().reached(flight.ended.get())) return true;
    lock.lock();
    if (std::exchange(has_mail_, false)) return false;
    told_.wait_for(lock, kLook, [&] { return num_told_ != seen; });
  }
}

void CudaEncoderSteps::wait(StepResult& result) {
  const auto [flight, pauses] = launched_.front();
  launched_.pop_front();
  if (flight == paused_) paused_ = nullptr;
  executor_.device().make_current();
  result.rows.resize(flight->counts.size());
  result.compute_seconds = 0;
  result.paused = pauses && !ends_before_mail(*flight);
  if (result.paused) {
    paused_ = flight;
  } else {
    read(*flight, result);
  }
}

void CudaEncoderSteps::read(const Flight& flight, StepResult& result) const {
  driver().check(driver().event_synchronize(flight.ended.get()), "running a step");
  float milliseconds = 0;
  driver().check(driver().event_elapsed(&milliseconds, flight.started.get(), flight.ended.get()), "timing a step");
  result.compute_seconds = static_cast<double>(milliseconds) / 1e3;
  const auto* values = reinterpret_cast<const float*>(flight.embeddings.data());
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const std::size_t count = flight.counts[i] * embedding_size_;
    set_embedding(result.rows[i], {values, count}, embedding_size_);
    values += count;
  }
}

}  // namespace tl::cuda
