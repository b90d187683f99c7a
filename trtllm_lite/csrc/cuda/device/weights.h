// The weights of an engine on a device.
#pragma once

#include <vector>

#include "cuda/device/device.h"
#include "engine/engine.h"

namespace tl::cuda {

class Weights {
 public:
  // Copies the weights from the mapped file, through page-locked memory that several threads fill. For an engine
  // without weights, makes random ones: normal with deviation 0.02, and 1 for float32 weights (norms, frequencies).
  Weights(const Device& device, const Engine& engine, Stream stream);

  // The address of a tensor of the plan; 0 if it is no weight.
  DevicePtr address(std::size_t tensor) const { return addresses_[tensor]; }
  std::size_t num_bytes() const { return buffer_.size(); }

 private:
  void upload(const Engine& engine, Stream stream) const;
  void make_up(const Device& device, const Engine& engine, Stream stream) const;

  DeviceBuffer buffer_;
  std::vector<DevicePtr> addresses_;
};

}  // namespace tl::cuda
