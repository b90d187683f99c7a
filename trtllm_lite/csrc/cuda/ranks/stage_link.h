// Carries the rows that a rank of a pipeline stage computes to a rank of the next stage, on another GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/cuda_executor.h"

namespace tl::cuda {

// A destination of the rows that a rank sends to the next stage.
class RowSink {
 public:
  virtual ~RowSink() = default;
  // Enqueues copies after the computation of a step's rows on the rank's stream. Its device must be current.
  virtual void send(std::int64_t num_tokens) = 0;
};

// A source of the rows that the previous stage computes for a rank.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // Enqueues copies on the rank's stream for the oldest step not yet received. Its device must be current.
  virtual void receive(std::int64_t num_tokens) = 0;
};

// Both ends of a link between GPUs of one process. The receiver's memory has two places, each for the rows of a step,
// so that the sender can go on to the next step while the receiver still computes.
class StageLink final : public RowSink, public RowSource {
 public:
  // Borrows the executors, whose devices must have access to each other.
  StageLink(CudaExecutor& sender, CudaExecutor& receiver);

  void send(std::int64_t num_tokens) override;
  // Receives the rows of the step that was sent last.
  void receive(std::int64_t num_tokens) override;

 private:
  static constexpr std::size_t kPlaces = 2;
  struct Rows {
    DevicePtr from, to;
    std::size_t row_bytes, offset;  // offset within a place
  };
  struct Place {
    DeviceBuffer rows;
    OwnedEvent sent, taken;
  };

  Place& place() { return places_[num_sent_ % kPlaces]; }

  CudaExecutor &sender_, &receiver_;
  std::vector<Rows> rows_;
  std::array<Place, kPlaces> places_;
  std::size_t num_sent_ = 0;
};

}  // namespace tl::cuda
