// Carries the rows that a stage of a pipeline computes to a rank of the next stage, on another GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/cuda_executor.h"

namespace tl::cuda {

// Where the rows of a rank's steps go that the next stage computes with.
class RowSink {
 public:
  virtual ~RowSink() = default;
  // Puts copies on the rank's stream, behind what computes the rows of a step; its device is current.
  virtual void send(std::int64_t num_tokens) = 0;
};

// Where the rows of a rank's steps come from that the stage before has computed.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // Puts copies on the rank's stream, of the oldest step that was not received; its device is current.
  virtual void receive(std::int64_t num_tokens) = 0;
};

// Both ends, on GPUs of one process. Two places in the receiver's memory hold the rows of two steps, so that the sender
// goes on to the next step while the receiver computes another.
class StageLink final : public RowSink, public RowSource {
 public:
  // Borrows the executors, whose devices reach each other.
  StageLink(CudaExecutor& sender, CudaExecutor& receiver);

  void send(std::int64_t num_tokens) override;
  // Of the step that was sent last.
  void receive(std::int64_t num_tokens) override;

 private:
  static constexpr std::size_t kPlaces = 2;
  struct Rows {
    DevicePtr from, to;
    std::size_t row_bytes, offset;  // in a place
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
