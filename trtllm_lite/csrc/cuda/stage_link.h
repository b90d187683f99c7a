// Carries the rows that a stage of a pipeline computes to a rank of the next stage, on another GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/cuda_executor.h"

namespace tl::cuda {

// Two places in the receiver's memory hold the rows of two steps, so that the sender goes on to the next step while the
// receiver computes another.
class StageLink {
 public:
  // Borrows the executors, whose devices reach each other.
  StageLink(CudaExecutor& sender, CudaExecutor& receiver);

  // Puts copies on the sender's stream, behind what computes the rows of a step; its device is current.
  void send(std::int64_t num_tokens);
  // Puts copies on the receiver's stream, of the step that was sent last; its device is current.
  void receive(std::int64_t num_tokens);

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
