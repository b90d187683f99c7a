// Runs the steps of an encoder on a GPU for its event loop.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cuda/cuda_executor.h"
#include "cuda/step/side_stream.h"
#include "executor/step.h"

namespace tl::cuda {

// The rows of a step are whole texts. launch() enqueues a step behind the one that runs: it copies the packed inputs to
// the device, launches the program, and copies the embeddings back. wait() waits for that copy.
//
// A step that is paused runs on: only the wait for it is over. Steps beside it run on a side stream.
class CudaEncoderSteps final : public StepExecutor {
 public:
  // Borrows the executor, whose engine is an encoder, and the stream of steps within `bounds` beside a paused one; null
  // if no step is to be paused.
  CudaEncoderSteps(CudaExecutor& executor, SideStream* side, const StepBounds& bounds);
  ~CudaEncoderSteps() override;

  int num_slots() const override { return 0; }
  void set_slot(int, std::shared_ptr<const SlotParams>, std::span<const std::int32_t>, int) override {}
  void launch(const StepBatch& batch) override;
  void wait(StepResult& result) override;
  StepBounds beside_paused() const override { return bounds_; }
  bool runs_while_paused() const override { return true; }
  void wake() override;

 private:
  // A step from launch() to its results.
  struct Flight {
    PinnedBuffer inputs, embeddings;
    OwnedEvent started, ended;
    std::vector<std::size_t> counts;  // of embeddings of each row
  };
  struct Launched {
    Flight* flight;
    bool pauses;
  };

  Flight make_flight(std::size_t input_bytes, std::int64_t max_rows) const;
  Flight& flight_for(StepTurn turn);
  Stream stream_of(const Flight& flight) const;
  void pack(const StepBatch& batch, const InputLayout& layout, std::byte* out) const;
  void enqueue(const StepBatch& batch, Flight& flight);
  void copy_embeddings(const Extents& step, Flight& flight) const;
  void announce_end(const Flight& flight);
  void record(const OwnedEvent& event, Stream stream) const;
  bool ends_before_mail(const Flight& flight);
  void read(const Flight& flight, StepResult& result) const;
  void tell(bool of_mail);

  CudaExecutor& executor_;
  SideStream* const side_;
  const StepBounds bounds_;
  const int output_;  // the number of the plan's tensor of embeddings
  const std::size_t embedding_size_;
  const std::int64_t tokens_per_row_;
  const OwnedStream ends_;  // tells of the ends of steps that may be paused
  std::array<Flight, 2> flights_;
  Flight beside_;         // of the step on the side stream
  std::size_t last_ = 0;  // the flight that was used last of flights_
  std::deque<Launched> launched_;
  Flight* paused_ = nullptr;

  std::mutex mutex_;  // guards the following members
  std::condition_variable told_;
  std::uint64_t num_told_ = 0;  // how often tell() was called
  bool has_mail_ = false;       // whether a step that may be paused is to be
};

}  // namespace tl::cuda
