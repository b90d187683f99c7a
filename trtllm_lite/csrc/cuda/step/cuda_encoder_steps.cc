#include "cuda/step/cuda_encoder_steps.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cuda/step/input_layout.h"
#include "engine/module.h"
#include "engine/vocabulary.h"
#include "executor/embedding.h"
#include "sample/slot.cuh"

namespace tl::cuda {
namespace {

const Port& made_by(const CudaExecutor& executor) { return only_module(executor.engine().manifest()).outputs.front(); }

}  // namespace

CudaEncoderSteps::CudaEncoderSteps(CudaExecutor& executor)
    : executor_(executor), embedding_size_(static_cast<std::size_t>(made_by(executor).shape[1].value)) {
  executor_.device().make_current();
  const auto max_rows = static_cast<std::size_t>(executor_.plan().symbols[Symbol::kNumSeqs]);
  for (Flight& flight : flights_) {
    flight.inputs = PinnedBuffer(executor_.max_input_bytes(), "inputs of a step",
                                 "build the engine with a smaller --max_num_tokens");
    flight.embeddings = PinnedBuffer(max_rows * embedding_size_ * sizeof(float), "embeddings",
                                     "build the engine with a smaller --max_batch_size");
    flight.started = make_event();
    flight.ended = make_event();
  }
}

std::unique_ptr<StepExecutor> CudaExecutor::make_encoder_steps() { return std::make_unique<CudaEncoderSteps>(*this); }

CudaEncoderSteps::~CudaEncoderSteps() {
  if (executor_.device().try_make_current()) driver().stream_synchronize(executor_.stream());
}

void CudaEncoderSteps::launch(const StepBatch& batch) {
  executor_.device().make_current();
  Flight& flight = flights_[(oldest_ + num_in_flight_) % flights_.size()];
  try {
    enqueue(batch, flight);
  } catch (...) {  // what was enqueued may still read the inputs
    driver().stream_synchronize(executor_.stream());
    throw;
  }
  ++num_in_flight_;
}

void CudaEncoderSteps::enqueue(const StepBatch& batch, Flight& flight) {
  const StepShape shape{.num_tokens = std::ssize(batch.token_ids), .num_seqs = std::ssize(batch.rows)};
  flight.num_rows = batch.rows.size();
  const Extents step = executor_.extents(shape);
  pack(batch, step, flight.inputs.data());
  record(flight.started);
  executor_.enqueue_step(shape, flight.inputs.data());
  const OutputPlace rows = find_output(executor_.plan(), step, made_by(executor_).name, {});
  driver().check(
      driver().copy_to_host(flight.embeddings.data(), executor_.address_of(rows), rows.bytes(), executor_.stream()),
      "copying embeddings");
  record(flight.ended);
}

// Writes the inputs of a step that draws no tokens and has no cache.
void CudaEncoderSteps::pack(const StepBatch& batch, const Extents& step, std::byte* out) const {
  const InputLayout layout = executor_.input_layout(step);
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
}

void CudaEncoderSteps::record(const OwnedEvent& event) const {
  driver().check(driver().event_record(event.get(), executor_.stream()), "timing a step");
}

void CudaEncoderSteps::wait(StepResult& result) {
  const Flight& flight = flights_[oldest_];
  oldest_ = (oldest_ + 1) % flights_.size();
  --num_in_flight_;
  executor_.device().make_current();
  driver().check(driver().event_synchronize(flight.ended.get()), "running a step");
  float milliseconds = 0;
  driver().check(driver().event_elapsed(&milliseconds, flight.started.get(), flight.ended.get()), "timing a step");
  result.compute_seconds = static_cast<double>(milliseconds) / 1e3;
  result.rows.resize(flight.num_rows);
  std::span values(reinterpret_cast<const float*>(flight.embeddings.data()), flight.num_rows * embedding_size_);
  for (RowResult& row : result.rows) {
    set_embedding(row, values.first(embedding_size_));
    values = values.subspan(embedding_size_);
  }
}

}  // namespace tl::cuda
